"""The columns of a shard, and instances as flat arrays: the one table of the content of a shard, in its order.

Arrow stores a column as *nodes*: one for a number per row, two for a list per row, which are where each row's values
start and the values of all rows end to end. ``COLUMNS`` is the table; the schema, the arrays of `FlatInstances` and the
loops that find these arrays in a file (`copy_loops`) follow from it.
"""

# R rows

from typing import NamedTuple, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from megabert.tokens.masking import MaskedInstances


class Column(NamedTuple):
    """A column of the Arrow schema, and the fields of `FlatInstances` that hold it."""

    name: str
    """Name in the schema."""
    values: str
    """Field with the values of all rows, end to end."""
    starts: str | None
    """Field that says where each row's values start; None if there is one value per row."""
    width: int
    """Bytes of a value, an unsigned integer; 0 for a token id, whose type follows from the size of the vocabulary."""

    def type(self, token: pa.DataType) -> pa.DataType:
        """Return the column's Arrow type, for token ids of a type."""
        value = {0: token, 1: pa.uint8(), 2: pa.uint16()}[self.width]
        return value if self.starts is None else pa.list_(value)


COLUMNS = (
    Column("input_ids", "input_ids", "token_starts", 0),
    Column("segment_b_start", "segment_b_starts", None, 2),
    Column("masked_lm_positions", "masked_positions", "masked_starts", 2),
    Column("masked_lm_ids", "masked_ids", "masked_id_starts", 0),
    Column("next_sentence_label", "next_sentence_labels", None, 1),
)

# Kinds of nodes.
PER_ROW, STARTS, LIST_VALUES = range(3)


class Node(NamedTuple):
    """An array of a record batch in a file, a field of `FlatInstances`."""

    holds: int
    """PER_ROW, STARTS or LIST_VALUES."""
    width: int
    """Bytes of a value; 0 for a token id."""


NODES = tuple(
    node
    for _, _, starts, width in COLUMNS
    for node in ([Node(PER_ROW, width)] if starts is None else [Node(STARTS, 4), Node(LIST_VALUES, width)])
)
"""All nodes of a record batch, in the order of the file. Each has two buffers there: validity, then its values."""


class FlatInstances(NamedTuple):
    """Instances as flat arrays: the values of a list column end to end, and where each row's start.

    It is a NamedTuple, so that a compiled loop can take it; the arrays of a file come first, in the order of ``NODES``.
    """

    token_starts: NDArray[np.integer]
    """Shape (R + 1,): where each instance's tokens start, and the end."""
    input_ids: NDArray[np.integer]
    """The tokens of all instances, as stored: masked if the shards hold the masks."""
    segment_b_starts: NDArray[np.integer]
    """Shape (R,): the index in its instance of segment B's first token; the instance's length if there is no B."""
    masked_starts: NDArray[np.integer]
    """Shape (R + 1,): where each instance's masked positions start, and the end."""
    masked_positions: NDArray[np.integer]
    """All positions to predict, counted from the start of their instance, ascending within it."""
    masked_id_starts: NDArray[np.integer]
    """The same as ``masked_starts``, for ``masked_ids``; the two are equal in sound instances."""
    masked_ids: NDArray[np.integer]
    """The ids before masking at these positions."""
    next_sentence_labels: NDArray[np.integer]
    """Shape (R,): 1 if segment B is random (or, for SOP, swapped), else 0."""
    rows: NDArray[np.int64]
    """Shape (R,): number of each instance in the set or batch that it was read from; no column of a shard."""

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> Self:
        """Open a record batch of a shard, or a slice of one; values are not copied."""
        arrays: list[NDArray[np.integer]] = []
        for column in COLUMNS:
            if column.starts is None:
                arrays.append(np.asarray(batch[column.name]))
            else:
                arrays += reversed(flat_list(batch[column.name]))
        return cls._make([*arrays, np.arange(len(batch))])

    @classmethod
    def with_room(cls, rows: NDArray[np.int64], *, tokens: int, masked: int, token: type) -> Self:
        """Return arrays to be filled with some rows; memory that is never written is never taken from the system.

        Args:
            rows: The rows.
            tokens: Most tokens of an instance.
            masked: Most positions to predict in an instance.
            token: The numpy type of a token id.
        """
        count = len(rows)
        masked_starts = np.zeros(count + 1, np.int64)
        return cls(
            token_starts=np.zeros(count + 1, np.int64),
            input_ids=np.empty(count * tokens, token),
            segment_b_starts=np.empty(count, np.int64),
            masked_starts=masked_starts,
            masked_positions=np.empty(count * masked, np.uint16),
            masked_id_starts=masked_starts,
            masked_ids=np.empty(count * masked, token),
            next_sentence_labels=np.empty(count, np.int64),
            rows=rows,
        )

    def without_room(self) -> Self:
        """Return the arrays without the room that lists have left over."""
        tokens, masked = self.token_starts[-1], self.masked_starts[-1]
        return self._replace(
            input_ids=self.input_ids[:tokens],
            masked_positions=self.masked_positions[:masked],
            masked_ids=self.masked_ids[:masked],
        )

    @property
    def lengths(self) -> NDArray[np.integer]:
        """Tokens of each instance."""
        return np.diff(self.token_starts)

    @property
    def masked_tokens(self) -> NDArray[np.int64]:
        """Number, among the tokens of all instances, of each token to predict."""
        return np.repeat(self.token_starts[:-1], np.diff(self.masked_starts)) + self.masked_positions

    def with_masks(self, masked: MaskedInstances) -> Self:
        """Return the instances with their masks."""
        return self._replace(
            input_ids=masked.ids_T,
            masked_starts=masked.offsets,
            masked_positions=masked.positions_M,
            masked_id_starts=masked.offsets,
            masked_ids=masked.original_ids_M,
        )


def flat_list(column: pa.ListArray) -> tuple[NDArray[np.integer], NDArray[np.int64]]:
    """Return the values and the offsets (length + 1, from 0) of a list column, without copying values."""
    offsets = np.asarray(column.offsets)
    values = np.asarray(column.values)[offsets[0] : offsets[-1]] if len(column) else np.asarray(column.values)[:0]
    return values, np.subtract(offsets, offsets[:1], dtype=np.int64)
