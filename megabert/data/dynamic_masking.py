"""Masks that the shards leave to the loader: an instance gets new ones in each epoch, the same on every rank."""

import copy
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from megabert.data.mixture import Mixture
from megabert.foundation.randomness.keyed import mix, string_key
from megabert.tokens.masking import MaskingOptions, PieceTable, count_predictions, mask_instances, rarity_weights
from megabert.tokens.shards.columns import FlatInstances
from megabert.tokens.shards.shard_set import ShardSet
from megabert.tokens.tokenization import load_tokenizer

_MASKS_KEY = string_key("data/dynamic_masks")
_COUNTED_RUNS, _COUNTED_TOKENS = 64, 131_072
"""How much of a split is counted, so that it takes about a second: runs of neighbours, and tokens of a run at most."""


class DynamicMasker:
    """Masks instances as a function of (seed, epoch, row). There is no generator, so a checkpoint has none to save."""

    def __init__(self, shards: Mixture, seed: int) -> None:
        """Read the properties of the vocabulary on which masking depends.

        Args:
            shards: Sources whose masks are left to the loader.
            seed: Seed of the run.

        Raises:
            DataError: Words are masked whole, and the tokenizer next to the shards cannot be read.
        """
        metadata = shards.first.metadata
        self._seed = seed
        self._options = self._default = metadata.masking_options
        is_token = metadata.mask_unit == "token"
        is_subword = None if is_token else load_tokenizer(shards.first.tokenizer_dir).is_subword
        self._pieces = metadata.piece_table(is_subword)
        self._shards = shards
        self._weighted: dict[float, PieceTable] = {}  # by rarity; shared with the maskers of `with_options`

    def with_options(self, options: MaskingOptions | None) -> "DynamicMasker":
        """Return the same masker with other options; None as the shards say."""
        masker = copy.copy(self)
        masker._options = options or self._default
        return masker

    def most_predictions(self, lengths: NDArray[np.integer]) -> NDArray[np.int64]:
        """Return how many positions are predicted at most in instances of these lengths.

        With single tokens exactly this number is predicted, unless instances draw their shares. If words are masked
        whole, a word that does not fit is left out.
        """
        return count_predictions(lengths, self._options)

    def mask(self, columns: FlatInstances, epochs: NDArray[np.int64] | int) -> FlatInstances:
        """Return instances with the masks of an epoch, or of one epoch for each."""
        # The key is made from the row, so an instance gets the same masks on whatever rank and in whatever batch it is.
        keys = mix(_MASKS_KEY, self._seed, epochs, columns.rows)
        masked = mask_instances(
            columns.input_ids, columns.token_starts, keys=keys, pieces=self._pieces_by_rarity(), options=self._options
        )
        return columns.with_masks(masked)

    def _pieces_by_rarity(self) -> PieceTable:
        """Return what masking knows of the vocabulary; pieces are counted when their weights are first needed."""
        rarity = self._options.rarity
        if not rarity:
            return self._pieces
        if rarity not in self._weighted:
            weights = rarity_weights(_mixed_counts(self._shards), rarity)
            self._weighted[rarity] = self._pieces._replace(weights=weights)
        return self._weighted[rarity]


def _mixed_counts(shards: Mixture) -> NDArray[np.int64]:
    """Count pieces in all sources, whose counts are weighted so that they have their shares of the mixture."""
    counts = [count_pieces(source) for source in shards.sources]
    lengths = (source.statistics.tokens / source.num_rows for source in shards.sources)
    tokens = [weight * length for weight, length in zip(shards.weights, lengths, strict=True)]
    whole = sum(count.sum() for count in counts) / sum(tokens)
    scaled = sum(count * (whole * share / count.sum()) for count, share in zip(counts, tokens, strict=True))
    return np.rint(scaled).astype(np.int64)


def count_pieces(shards: ShardSet) -> NDArray[np.int64]:
    """Count how often each piece occurs in a split: in all of it, or in 64 evenly spaced runs of 131,072 tokens.

    Shards are shuffled, so that a run is a sample of the corpus. It is the same one for every rank and resume.

    Args:
        shards: Shards without masks, whose ids are the text's.

    Returns:
        Counts by id.
    """
    vocab_size, rows = shards.metadata.vocab_size, max(1, _COUNTED_TOKENS // shards.metadata.max_seq_length)
    edges = np.arange(_COUNTED_RUNS + 1) * shards.num_rows // _COUNTED_RUNS
    counts = np.zeros(vocab_size, np.int64)
    for first, stop in pairwise(np.unique(edges).tolist()):
        counted = shards.rows(np.arange(first, min(stop, first + rows)))
        counts += np.bincount(counted.input_ids, minlength=vocab_size)
    return counts
