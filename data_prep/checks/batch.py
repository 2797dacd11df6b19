"""A record batch of instances as flat numpy arrays, the form in which compiled loops read it."""

# T tokens, M predictions, R rows

from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from data_prep.arrow_files import flat_list


class Batch(NamedTuple):
    """A record batch, opened up; arrays are views of Arrow's memory."""

    ids_T: NDArray[np.integer]
    """Ids of all instances end to end, as stored: masked."""
    offsets: NDArray[np.int64]
    """Shape (R + 1,): where each instance starts, and the end."""
    b_start_R: NDArray[np.integer]
    """Where B starts in each instance; its length where there is none."""
    positions_M: NDArray[np.integer]
    """Predicted positions, counted from the start of their instance."""
    ends_M: NDArray[np.int64]
    """Shape (R + 1,): where each row's predictions end, after a 0."""
    originals_M: NDArray[np.integer]
    """Ids before masking at the predicted positions."""
    ends_originals: NDArray[np.int64]
    """Shape (R + 1,): as ``ends_M``, for ``originals_M``. Equal in a sound batch."""
    label_R: NDArray[np.integer]

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> "Batch":
        """Open a record batch."""
        return cls(
            *flat_list(batch["input_ids"]),
            np.asarray(batch["segment_b_start"]),
            *flat_list(batch["masked_lm_positions"]),
            *flat_list(batch["masked_lm_ids"]),
            np.asarray(batch["next_sentence_label"]),
        )

    def restored(self) -> NDArray[np.integer]:
        """Return the ids before masking; the batch must be sound."""
        ids = self.ids_T.copy()
        ids[np.repeat(self.offsets[:-1], np.diff(self.ends_M)) + self.positions_M] = self.originals_M
        return ids

    def rows_of(self, tokens: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return the rows that hold a marked token."""
        marked = np.searchsorted(self.offsets, np.flatnonzero(tokens), side="right") - 1
        return np.bincount(marked, minlength=len(self.label_R)) > 0
