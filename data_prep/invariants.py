"""What must hold for every instance of a shard; each rule a small function that returns the rows that break it."""

# I instances of a batch, T their tokens, M their predictions

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from data_prep.arrow_files import flat_list
from megabert.masking.static import MaskingOptions, count_predictions
from megabert.schema import ShardMetadata

Rows = NDArray[np.bool_]


@dataclass(frozen=True)
class Batch:
    """A record batch, opened up."""

    ids_T: NDArray[np.int64]
    """As stored."""
    offsets: NDArray[np.int64]
    lengths: NDArray[np.int64]
    b_start: NDArray[np.int64]
    positions_M: NDArray[np.int64]
    originals_M: NDArray[np.int64]
    row_M: NDArray[np.int64]
    """Row of each prediction."""
    predictions: NDArray[np.int64]
    """Number of each row's predictions."""
    originals: NDArray[np.int64]
    """Number of each row's original ids."""
    label: NDArray[np.int64]

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> "Batch":
        """Open a record batch."""
        ids, offsets = flat_list(batch["input_ids"])
        positions, position_offsets = flat_list(batch["masked_lm_positions"])
        originals, original_offsets = flat_list(batch["masked_lm_ids"])
        predictions = np.diff(position_offsets)
        return cls(
            ids.astype(np.int64),
            offsets,
            np.diff(offsets),
            np.asarray(batch["segment_b_start"]).astype(np.int64),
            positions.astype(np.int64),
            originals.astype(np.int64),
            np.repeat(np.arange(batch.num_rows), predictions),
            predictions,
            np.diff(original_offsets),
            np.asarray(batch["next_sentence_label"]).astype(np.int64),
        )

    def restored(self) -> NDArray[np.int64]:
        """Return the ids before masking; predictions must lie inside their instances."""
        ids = self.ids_T.copy()
        ids[self.offsets[self.row_M] + self.positions_M] = self.originals_M
        return ids

    def rows_of(self, tokens: NDArray[np.bool_]) -> Rows:
        """Return the rows that hold a marked token."""
        row_T = np.repeat(np.arange(len(self.lengths)), self.lengths)
        return np.bincount(row_T[tokens], minlength=len(self.lengths)) > 0

    def rows_with(self, predictions: NDArray[np.bool_]) -> Rows:
        """Return the rows that hold a marked prediction."""
        return np.bincount(self.row_M[predictions], minlength=len(self.lengths)) > 0


def _wrong_length(batch: Batch, metadata: ShardMetadata) -> Rows:
    shortest = 3 if metadata.objective == "none" else 5
    return (batch.lengths < shortest) | (batch.lengths > metadata.max_seq_length)


def _wrong_segment(batch: Batch, metadata: ShardMetadata) -> Rows:
    if metadata.objective == "none":
        return batch.b_start != batch.lengths
    return (batch.b_start < 3) | (batch.b_start > batch.lengths - 2)


def _wrong_label(batch: Batch, metadata: ShardMetadata) -> Rows:
    return batch.label > (0 if metadata.objective == "none" else 1)


def _wrong_id(batch: Batch, metadata: ShardMetadata) -> Rows:
    return batch.rows_of(batch.ids_T >= metadata.vocab_size) | batch.rows_with(batch.originals_M >= metadata.vocab_size)


def _wrong_prediction_count(batch: Batch, metadata: ShardMetadata) -> Rows:
    if metadata.masking == "dynamic":
        return (batch.predictions > 0) | (batch.originals > 0)
    return (batch.originals != batch.predictions) | (batch.predictions > metadata.max_predictions_per_seq)


def _wrong_positions(batch: Batch, metadata: ShardMetadata) -> Rows:
    positions, row = batch.positions_M, batch.row_M
    is_first = np.concatenate([[True], row[1:] != row[:-1]]) if len(row) else np.zeros(0, bool)
    ascending = is_first | (positions > np.concatenate([[0], positions[:-1]]))
    is_special = (positions == 0) | (positions == batch.b_start[row] - 1) | (positions >= batch.lengths[row] - 1)
    return batch.rows_with(~ascending | is_special)


def _wrong_specials(batch: Batch, metadata: ShardMetadata) -> Rows:
    ids, special = batch.restored(), metadata.special_ids
    places = np.zeros(len(ids), bool)
    last = batch.offsets[1:] - 1
    separators = np.concatenate([last, batch.offsets[:-1] + batch.b_start - 1])
    places[batch.offsets[:-1]] = places[separators] = True
    bad = np.isin(ids, [special[name] for name in ("pad", "cls", "sep", "mask")]) & ~places
    bad[batch.offsets[:-1]] |= ids[batch.offsets[:-1]] != special["cls"]
    bad[separators] |= ids[separators] != special["sep"]
    return batch.rows_of(bad)


# In an order in which each may rely on those before.
RULES: dict[str, Callable[[Batch, ShardMetadata], Rows]] = {
    "its length is out of bounds": _wrong_length,
    "segment_b_start is out of bounds": _wrong_segment,
    "next_sentence_label is not allowed": _wrong_label,
    "an id is not in the vocabulary": _wrong_id,
    "masked_lm_positions and masked_lm_ids do not agree, or are too many": _wrong_prediction_count,
    "masked_lm_positions do not ascend, or one is a special or lies outside": _wrong_positions,
    "[CLS], [SEP], [MASK] or [PAD] is missing or stands where text should": _wrong_specials,
}


def wrong_share(batch: Batch, metadata: ShardMetadata) -> Rows:
    """Return rows with another number of predictions than google-research/bert makes; words may leave some over."""
    if metadata.masking == "dynamic":
        return np.zeros(len(batch.lengths), bool)
    options = MaskingOptions(
        masked_lm_prob=metadata.masked_lm_prob, max_predictions_per_seq=metadata.max_predictions_per_seq
    )
    text = batch.lengths - np.where(batch.b_start < batch.lengths, 3, 2)
    wanted = np.minimum(count_predictions(batch.lengths, options), text)
    return batch.predictions != wanted if metadata.mask_unit == "token" else batch.predictions > wanted


def splits_words(batch: Batch, is_subword: NDArray[np.bool_]) -> Rows:
    """Return rows in which one piece of a word is predicted and the next is not, or the other way round."""
    is_chosen = np.zeros(len(batch.ids_T), bool)
    is_chosen[batch.offsets[batch.row_M] + batch.positions_M] = True
    position = np.arange(len(batch.ids_T)) - np.repeat(batch.offsets[:-1], batch.lengths)
    is_inside = is_subword[batch.restored()] & (position > 1) & (position != np.repeat(batch.b_start, batch.lengths))
    is_inside[1:] &= is_chosen[1:] != is_chosen[:-1]
    return batch.rows_of(is_inside)


def starts_inside_word(batch: Batch, is_subword: NDArray[np.bool_]) -> Rows:
    """Return rows of which a side starts with a piece that continues a word."""
    ids, begin = batch.restored(), batch.offsets[:-1]
    second = np.where(batch.b_start < batch.lengths, begin + batch.b_start, begin + 1)
    return is_subword[ids[begin + 1]] | is_subword[ids[second]]
