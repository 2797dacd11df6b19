"""Masks drawn while loading: an instance gets new masks in each epoch, the same on every rank and after a resume."""

import copy

import numpy as np
from numpy.typing import NDArray

from megabert.masking import MaskingOptions, count_predictions, mask_instances
from megabert.randomness.keyed import mix, string_key
from megabert.shards.columns import FlatInstances
from megabert.shards.shard_set import ShardSet
from megabert.tokenization import load_tokenizer

_MASKS_KEY = string_key("data/dynamic_masks")


class DynamicMasker:
    """Masks instances as a function of (seed, epoch, row). There is no generator, so a checkpoint has none to save."""

    def __init__(self, shards: ShardSet, seed: int) -> None:
        """Read the properties of the vocabulary on which masking depends.

        Args:
            shards: Shards whose masks are left to the loader.
            seed: Seed of the run.

        Raises:
            DataError: Words are masked whole, and the tokenizer next to the shards cannot be read.
        """
        metadata = shards.metadata
        self._seed = seed
        self._options = self._default = metadata.masking_options
        is_token = metadata.mask_unit == "token"
        is_subword = None if is_token else load_tokenizer(shards.folder / "tokenizer").is_subword
        self._pieces = metadata.piece_table(is_subword)

    def under(self, options: MaskingOptions | None) -> "DynamicMasker":
        """Return the same masker with other options; None as the shards say."""
        masker = copy.copy(self)
        masker._options = options or self._default
        return masker

    def most_predictions(self, lengths: NDArray[np.integer]) -> NDArray[np.int64]:
        """Return how many positions are predicted at most in instances of these lengths.

        Of single tokens it is just that many, unless instances draw their shares; where words are masked whole, one
        that does not fit is passed over.
        """
        return count_predictions(lengths, self._options)

    def mask(self, columns: FlatInstances, epochs: NDArray[np.int64] | int) -> FlatInstances:
        """Return instances with the masks of an epoch, or of one epoch for each."""
        # The key is made from the row, so an instance gets the same masks on whatever rank and in whatever batch it is.
        keys = mix(_MASKS_KEY, self._seed, epochs, columns.rows)
        masked = mask_instances(
            columns.input_ids, columns.token_starts, keys=keys, pieces=self._pieces, options=self._options
        )
        return columns.with_masks(masked)
