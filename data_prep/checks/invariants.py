"""What must hold for every instance of a shard, whatever text it was made from."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from megabert.tokens.masking import count_predictions
from megabert.tokens.shards import FlatInstances, ShardMetadata, token_type
from megabert.tokens.tokenization import SpecialIds, Tokenizer

RULES = (
    "its length is out of bounds",
    "segment_b_start is out of bounds",
    "next_sentence_label is not allowed",
    "masked_lm_positions and masked_lm_ids do not agree, or are too many",
    "masked_lm_positions do not ascend, or one is a special or lies outside",
    "an id is not in the vocabulary",
    "[CLS], [SEP], [MASK] or [PAD] is missing or is where text should be",
    "its number of predictions is not that of its length",
    "a word is predicted in part",
    "a side starts inside a word",
)
"""The rules, by their numbers in `data_prep.checks.invariant_loops`; an instance is named for the first it breaks."""


class Batch(FlatInstances):
    """A record batch, opened up; arrays are views of Arrow's memory."""

    def restored(self) -> NDArray[np.integer]:
        """Return the ids before masking; the batch must be sound."""
        ids = self.input_ids.copy()
        ids[np.repeat(self.token_starts[:-1], np.diff(self.masked_starts)) + self.masked_positions] = self.masked_ids
        return ids

    def rows_of(self, tokens: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return the rows that hold a marked token."""
        marked = np.searchsorted(self.token_starts, np.flatnonzero(tokens), side="right") - 1
        return np.bincount(marked, minlength=len(self.next_sentence_labels)) > 0


class Limits(NamedTuple):
    """The rules that are a number or a yes."""

    shortest: int
    """Tokens of an instance at least: the special ones and one a side."""
    longest: int
    most_predictions: int
    largest_label: int
    has_pairs: bool
    """Whether there is a B."""
    has_words: bool
    """Whether words are masked whole."""
    has_whole_sides: bool
    """Whether no side starts inside a word."""


class Rules(NamedTuple):
    """What holds for all instances of a folder of shards, as `data_prep.checks.invariant_loops` reads it."""

    limits: Limits
    special: SpecialIds
    """In the type of the shard's ids: 16 bits are compared faster than 64."""
    kinds: NDArray[np.uint8]
    """Kind of each piece of the vocabulary: special, one that continues a word, or any other."""
    wanted: NDArray[np.int64]
    """Number of predictions for each length up to the longest."""

    @classmethod
    def of(cls, metadata: ShardMetadata, tokenizer: Tokenizer, *, holds_ids: bool = False) -> "Rules":
        """Derive the rules from a manifest's metadata; lists of ids are cut at any id (``holds_ids``)."""
        from data_prep.checks.invariant_loops import SPECIAL, SUBWORD

        token = token_type(metadata.vocab_size).to_pandas_dtype()
        special = SpecialIds(*(token(metadata.special_ids[name]) for name in SpecialIds._fields))
        kinds = np.where(tokenizer.is_subword, SUBWORD, 0).astype(np.uint8)
        kinds[[special.cls, special.sep, special.mask, special.pad]] = SPECIAL
        has_pairs = metadata.objective != "none"
        limits = Limits(
            shortest=5 if has_pairs else 3,
            longest=metadata.max_seq_length,
            most_predictions=metadata.max_predictions_per_seq if metadata.masking == "static" else 0,
            largest_label=int(has_pairs),
            has_pairs=has_pairs,
            has_words=metadata.mask_unit != "token",
            has_whole_sides=has_pairs
            and metadata.pairing == "balanced"
            and tokenizer.kind.has_short_words
            and not holds_ids,
        )
        return cls(limits, special, kinds, _wanted(metadata, 3 if has_pairs else 2))

    def broken(self, batch: Batch) -> dict[str, NDArray[np.int64]]:
        """Return the rows that break a rule, by rule; each row for the first that it breaks."""
        from data_prep.checks.invariant_loops import first_broken, is_sound

        if is_sound(batch, self):
            return {}
        broken_R = np.empty(len(batch.next_sentence_labels), np.uint8)
        first_broken(batch, self, broken_R)
        return {rule: rows for number, rule in enumerate(RULES) if len(rows := np.flatnonzero(broken_R == number))}


def _wanted(metadata: ShardMetadata, frame: int) -> NDArray[np.int64]:
    """Return how many predictions google-research/bert makes in instances of each length.

    Args:
        metadata: Says the share and the cap.
        frame: Special tokens of an instance, which are never predicted.
    """
    lengths = np.arange(metadata.max_seq_length + 1)
    if metadata.masking == "dynamic":
        return np.zeros_like(lengths)
    return np.minimum(count_predictions(lengths, metadata.masking_options), np.maximum(lengths - frame, 0))
