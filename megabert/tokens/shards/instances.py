"""Record batches of a shard, checked before anyone follows the numbers in them.

A hash in a manifest vouches for bytes, not for sense. Arrow trusts a file: an offset past the values makes a reader
access memory that is not its own, and an id beyond the vocabulary ends in an index error far from its cause. Any
program may have written a shard.
"""

# T tokens, M predictions, R rows

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from megabert.foundation.errors import DataError
from megabert.tokens.shards.columns import FlatInstances
from megabert.tokens.shards.format import ShardMetadata


def read_batches(reader: pa.RecordBatchFileReader, numbers: Sequence[int], *, is_full: bool = True) -> pa.RecordBatch:
    """Return some record batches of a shard as one, in which no offset is outside and no value is missing.

    Args:
        reader: Reads a file with the schema of a shard (`ShardMetadata.from_arrow`).
        numbers: Indices of the batches, one at least. A call for a batch of some hundred rows takes as long as for one
            of thousands, so a caller that reads all of them takes many at a time.
        is_full: Whether each offset is checked, or only how much there is of each column: then the caller checks the
            offsets that it uses.

    Raises:
        DataError: A batch is damaged; the message is a clause that the caller completes with the file.
    """
    batches = []
    for number in numbers:
        try:
            batches.append(reader.get_batch(number))
            batches[-1].validate(full=is_full)
        except (pa.ArrowException, OSError, SystemError) as error:
            raise DataError(f"record batch {number} cannot be read ({str(error).splitlines()[0]})") from error
    batch, number = batches[0], numbers[0]
    if len(batches) > 1:
        batch = pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
    # Most batches have no room for nulls: a column's first buffer, and the first of a list's values, would be that.
    if any(buffer is not None for column in batch.columns for buffer in column.buffers()[::2]):
        _refuse_nulls(batch, number)
    return batch


def _refuse_nulls(batch: pa.RecordBatch, number: int) -> None:
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        # A null of a list or in one: the stored value may be anything.
        inner = column.values if pa.types.is_list(column.type) else column
        if column.null_count or inner.null_count:
            raise DataError(f"record batch {number}: {name} has null values, where every instance needs one")


def find_nonsense(batch: FlatInstances, metadata: ShardMetadata) -> tuple[int, str] | None:
    """Return the first row of a batch that no reader can use, and why; None if all can be used.

    Training relies on no more than this. Whether instances are as a build makes them (words masked whole, the right
    number of predictions, special tokens in their places) is checked by `megabert-data verify`.
    """
    starts, position_starts = batch.token_starts, batch.masked_starts
    length_R, count_R = np.diff(starts), np.diff(position_starts)
    has_pairs = metadata.objective != "none"
    most = metadata.max_predictions_per_seq if metadata.masking == "static" else 0
    # [CLS] A [SEP] B [SEP] with a token at least on each side; without B it starts after the end.
    first_b, last_b = (3, length_R - 2) if has_pairs else (length_R, length_R)
    # One number per row: each has its bounds.
    limits = (
        ("the length of input_ids", length_R, 5 if has_pairs else 3, metadata.max_seq_length),
        ("segment_b_start", batch.segment_b_starts, first_b, last_b),
        ("next_sentence_label", batch.next_sentence_labels, 0, int(has_pairs)),
        ("the length of masked_lm_positions", count_R, 0, most),
        ("the length of masked_lm_ids", np.diff(batch.masked_id_starts), count_R, count_R),
    )
    for name, values, low, high in limits:
        outside = (values < low) | (values > high)
        if outside.any():
            row = int(outside.argmax())
            low, high = (int(np.broadcast_to(limit, len(values))[row]) for limit in (low, high))
            return row, f"{name} is {values[row]}, allowed is {low if low == high else f'{low} to {high}'}"
    # Ids are pieces of the vocabulary.
    id_columns = (("input_ids", batch.input_ids, starts), ("masked_lm_ids", batch.masked_ids, batch.masked_id_starts))
    for name, ids, ends in id_columns:
        if len(ids) and ids.max() >= metadata.vocab_size:
            index = int(ids.argmax())
            return _row(ends, index), f"{name} has {ids[index]}, the vocabulary has {metadata.vocab_size} pieces"
    # Each row's positions ascend, so that its last one is the greatest.
    positions = batch.masked_positions
    is_wrong = positions >= np.repeat(length_R, count_R)
    is_first = np.zeros(len(positions) + 1, bool)
    is_first[position_starts] = True
    is_wrong[1:] |= (positions[1:] <= positions[:-1]) & ~is_first[1:-1]
    if is_wrong.any():
        index = int(is_wrong.argmax())
        row = _row(position_starts, index)
        return row, f"masked_lm_positions has {positions[index]}, they have to ascend and be below {length_R[row]}"
    return None


def _row(starts: NDArray[np.integer], index: int) -> int:
    return int(np.searchsorted(starts, index, side="right")) - 1
