"""Decoded instances as flat arrays, the form in which they are checked, masked and packed."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Columns(NamedTuple):
    """Decoded instances. Lists are stored flat, end to end, with an array that says where each instance's starts.

    It is a NamedTuple, so that a compiled loop can take it.

    Attributes:
        input_ids: Uint16 or uint32, the tokens of all instances.
        token_starts: Int64 of shape (rows + 1,), where each instance's tokens start, and the end.
        segment_b_starts: Int64 of shape (rows,), the index in its instance of segment B's first token.
        masked_positions: Uint16, all positions to predict, counted from the start of their instance.
        masked_ids: The original ids of these positions.
        masked_starts: Int64 of shape (rows + 1,), where each instance's masked positions start, and the end.
        next_sentence_labels: Int64 of shape (rows,), 1 where segment B is random (or, for SOP, swapped).
        rows: Int64 of shape (rows,), the global row of each instance.
    """

    input_ids: NDArray
    token_starts: NDArray[np.int64]
    segment_b_starts: NDArray[np.int64]
    masked_positions: NDArray[np.integer]
    masked_ids: NDArray
    masked_starts: NDArray[np.int64]
    next_sentence_labels: NDArray[np.int64]
    rows: NDArray[np.int64]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each instance."""
        return np.diff(self.token_starts)

    def lengths_of(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of tokens of some instances."""
        return self.token_starts[indices + 1] - self.token_starts[indices]

    def masked_counts_of(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of positions to predict in some instances."""
        return self.masked_starts[indices + 1] - self.masked_starts[indices]
