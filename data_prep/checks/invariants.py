"""What must hold for every instance of a shard, whatever text it was made from."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from data_prep.arrow_files import flat_list
from megabert.masking import MaskingOptions, count_predictions
from megabert.schema import ShardMetadata, token_type
from megabert.tokenization import Tokenizer

RULES = (
    "its length is out of bounds",
    "segment_b_start is out of bounds",
    "next_sentence_label is not allowed",
    "masked_lm_positions and masked_lm_ids do not agree, or are too many",
    "masked_lm_positions do not ascend, or one is a special or lies outside",
    "an id is not in the vocabulary",
    "[CLS], [SEP], [MASK] or [PAD] is missing or stands where text should",
    "its number of predictions is not that of its length",
    "a word is predicted in part",
    "a side starts inside a word",
)
"""By the numbers of `data_prep.checks.invariant_loops`; an instance is named for the first that it breaks."""


@dataclass(frozen=True)
class Batch:
    """A record batch, opened up."""

    ids_T: NDArray[np.integer]
    """As stored."""
    offsets: NDArray[np.int64]
    b_start: NDArray[np.integer]
    positions_M: NDArray[np.integer]
    ends_M: NDArray[np.int64]
    """Where each row's predictions end, after a 0."""
    originals_M: NDArray[np.integer]
    ends_originals: NDArray[np.int64]
    label: NDArray[np.integer]

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

    @property
    def columns(self) -> tuple[NDArray, ...]:
        """In the order of the fields."""
        return (self.ids_T, self.offsets, self.b_start, self.positions_M, self.ends_M, self.originals_M,
                self.ends_originals, self.label)  # fmt: skip

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each instance."""
        return np.diff(self.offsets)

    def restored(self) -> NDArray[np.integer]:
        """Return the ids before masking; the batch must be sound."""
        ids = self.ids_T.copy()
        ids[np.repeat(self.offsets[:-1], np.diff(self.ends_M)) + self.positions_M] = self.originals_M
        return ids

    def rows_of(self, tokens: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return the rows that hold a marked token."""
        marked = np.searchsorted(self.offsets, np.flatnonzero(tokens), side="right") - 1
        return np.bincount(marked, minlength=len(self.label)) > 0


@dataclass(frozen=True, eq=False)
class Rules:
    """What holds for all instances of a folder of shards."""

    bounds: tuple[int, ...]
    special: tuple[np.integer, ...]
    kinds: NDArray[np.uint8]
    wanted: NDArray[np.int64]
    """The arguments of `data_prep.checks.invariant_loops.first_broken`."""

    @classmethod
    def of(cls, metadata: ShardMetadata, tokenizer: Tokenizer) -> "Rules":
        """Derive the rules from what the manifest says."""
        from data_prep.checks.invariant_loops import SPECIAL, SUBWORD

        token = token_type(metadata.vocab_size).to_pandas_dtype()
        special = np.array([metadata.special_ids[name] for name in ("cls", "sep", "mask", "pad")], token)
        kinds = np.where(tokenizer.is_subword, SUBWORD, 0).astype(np.uint8)
        kinds[special] = SPECIAL
        has_pairs = metadata.objective != "none"
        bounds = (
            5 if has_pairs else 3,
            metadata.max_seq_length,
            metadata.max_predictions_per_seq if metadata.masking == "static" else 0,
            int(has_pairs),
            has_pairs,
            metadata.mask_unit != "token",
            # a document begins without the space that marks a word
            metadata.pairing == "balanced" and not tokenizer.kind.keeps_spaces,
        )
        return cls(bounds, tuple(special), kinds, _wanted(metadata, 3 if has_pairs else 2))

    def broken(self, batch: Batch) -> dict[str, NDArray[np.int64]]:
        """Return the rows that break a rule, by rule; each row for the first that it breaks."""
        from data_prep.checks.invariant_loops import first_broken, is_sound

        arguments = (batch.columns, self.bounds, self.special, self.kinds, self.wanted)
        if is_sound(*arguments):
            return {}
        broken = np.empty(len(batch.label), np.uint8)
        first_broken(*arguments, broken)
        return {rule: rows for number, rule in enumerate(RULES) if len(rows := np.flatnonzero(broken == number))}


def _wanted(metadata: ShardMetadata, frame: int) -> NDArray[np.int64]:
    """Return how many predictions google-research/bert makes in instances of each length, ``frame`` tokens no text."""
    lengths = np.arange(metadata.max_seq_length + 1)
    if metadata.masking == "dynamic":
        return np.zeros_like(lengths)
    options = MaskingOptions(
        masked_lm_prob=metadata.masked_lm_prob, max_predictions_per_seq=metadata.max_predictions_per_seq
    )
    return np.minimum(count_predictions(lengths, options), np.maximum(lengths - frame, 0))
