"""Masks drawn while loading: an instance gets new masks in each epoch, the same on every rank and after a resume."""

import numpy as np
from numpy.typing import NDArray

from megabert.data.shard_set import Columns, ShardSet
from megabert.masking import MaskingOptions, PieceTable, mask_instances
from megabert.randomness.keyed import mix, string_key
from megabert.tokenization import load_tokenizer

_MASKS_KEY = string_key("data/dynamic_masks")


class DynamicMasker:
    """Masks instances as a function of (seed, epoch, row). There is no generator, so a checkpoint has none to save."""

    def __init__(self, shards: ShardSet, seed: int) -> None:
        """Read what masking needs to know of the vocabulary.

        Args:
            shards: Shards whose masks are left to the loader.
            seed: Seed of the run.

        Raises:
            DataError: Words are masked whole, and the tokenizer next to the shards cannot be read.
        """
        metadata = shards.metadata
        self._seed = seed
        self._options = MaskingOptions.of(metadata)
        is_token = metadata.mask_unit == "token"
        is_subword = None if is_token else load_tokenizer(shards.folder / "tokenizer").is_subword
        self._pieces = PieceTable.of(metadata, is_subword)

    def mask(self, columns: Columns, indices: NDArray[np.int64], epoch: int) -> Columns:
        """Return the chosen instances alone, in the order of ``indices``, masked for an epoch."""
        # Gather their tokens end to end: each instance's range of indices, shifted to where its tokens are stored.
        lengths = columns.lengths_of(indices)
        starts = np.concatenate([[0], np.cumsum(lengths)])
        source = np.arange(starts[-1]) + np.repeat(columns.token_starts[indices] - starts[:-1], lengths)
        # The key is that of the row, so an instance gets the same masks in whatever batch it is.
        keys = mix(_MASKS_KEY, self._seed, epoch, columns.rows[indices])
        masked = mask_instances(
            columns.input_ids[source], starts, keys=keys, pieces=self._pieces, options=self._options
        )
        return Columns(
            input_ids=masked.ids_T,
            token_starts=starts,
            segment_b_starts=columns.segment_b_starts[indices],
            masked_positions=masked.positions_M,
            masked_ids=masked.original_ids_M,
            masked_starts=masked.offsets,
            next_sentence_labels=columns.next_sentence_labels[indices],
            rows=columns.rows[indices],
        )


def make_masker(shards: ShardSet, seed: int) -> DynamicMasker | None:
    """Return the masker of shards whose masks are left to the loader, None where they are in the shards."""
    return DynamicMasker(shards, seed) if shards.metadata.masking == "dynamic" else None
