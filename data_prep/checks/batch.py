"""A record batch of instances as flat numpy arrays, the form in which compiled loops read it; and what it contains."""

# T tokens, M predictions, R rows

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from megabert.schema import FlatBatch, ShardMetadata

LENGTH_BINS = 16
"""Even ranges of lengths that instances are counted in."""


class Batch(FlatBatch):
    """A record batch, opened up; arrays are views of Arrow's memory."""

    @property
    def predicted_M(self) -> NDArray[np.int64]:
        """Where the token of each prediction is in ``ids_T``."""
        return np.repeat(self.offsets[:-1], np.diff(self.ends_M)) + self.positions_M

    def restored(self) -> NDArray[np.integer]:
        """Return the ids before masking; the batch must be sound."""
        ids = self.ids_T.copy()
        ids[self.predicted_M] = self.originals_M
        return ids

    def rows_of(self, tokens: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return the rows that hold a marked token."""
        marked = np.searchsorted(self.offsets, np.flatnonzero(tokens), side="right") - 1
        return np.bincount(marked, minlength=len(self.label_R)) > 0


def count_instances(batch: pa.RecordBatch, metadata: ShardMetadata) -> dict[str, Any]:
    """Return the counts of a shard's instances, under their names in the manifest."""
    columns = Batch.of(batch)
    length_R, is_random_R = np.diff(columns.offsets), columns.label_R == 1
    shown_M = columns.ids_T[columns.predicted_M]
    is_mask_M = shown_M == metadata.special_ids["mask"]
    bin_R = (length_R - 1) * LENGTH_BINS // metadata.max_seq_length
    return {
        "rows": batch.num_rows,
        "tokens": len(columns.ids_T),
        "masked_tokens": len(columns.positions_M),
        "random_next": int(np.count_nonzero(is_random_R)),  # in sentence order: swapped
        "random_next_tokens": int(length_R[is_random_R].sum()),
        "full_length": int(np.count_nonzero(length_R == metadata.max_seq_length)),
        "shown_as_mask": int(np.count_nonzero(is_mask_M)),
        # [MASK] itself may be a word of the text; it counts as masked.
        "shown_as_original": int(np.count_nonzero((shown_M == columns.originals_M) & ~is_mask_M)),
        "unknown_tokens": int(np.count_nonzero(columns.ids_T == metadata.special_ids["unk"])),
        "length_histogram": np.bincount(bin_R, minlength=LENGTH_BINS).tolist(),
    }
