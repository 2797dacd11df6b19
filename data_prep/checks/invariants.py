"""What must hold for every instance of a shard, whatever text it was made from, beyond the bounds of any shard."""

# R rows

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from megabert.tokens.masking import count_predictions
from megabert.tokens.shards.columns import FlatInstances
from megabert.tokens.shards.format import ShardMetadata, token_type
from megabert.tokens.tokenization import SpecialIds, Tokenizer

RULES = (
    "masked_lm_positions has a special",
    "its number of predictions is not that of its length",
    "[CLS], [SEP], [MASK] or [PAD] is missing or is where text should be",
    "a word is predicted in part",
    "a side starts inside a word",
)
"""The rules, by their numbers in `data_prep.checks.invariant_loops`; an instance is named for the first it breaks."""


class Rules(NamedTuple):
    """What holds for all instances of a folder of shards, as `data_prep.checks.invariant_loops` reads it."""

    special: SpecialIds
    """In the type of the shard's ids: 16 bits are compared faster than 64."""
    is_subword: NDArray[np.bool_]
    """Whether the piece of each id continues a word."""
    wanted: NDArray[np.int64]
    """Number of predictions for each length up to the longest."""
    has_words: bool
    """Whether words are masked whole."""
    has_whole_sides: bool
    """Whether no side starts inside a word."""

    @classmethod
    def of(cls, metadata: ShardMetadata, tokenizer: Tokenizer, *, holds_ids: bool = False) -> "Rules":
        """Derive the rules from a manifest's metadata; lists of ids are cut at any id (``holds_ids``)."""
        token = token_type(metadata.vocab_size).to_pandas_dtype()
        special = SpecialIds(*(token(metadata.special_ids[name]) for name in SpecialIds._fields))
        is_balanced = metadata.objective != "none" and metadata.pairing == "balanced"
        has_whole_sides = is_balanced and tokenizer.kind.has_short_words and not holds_ids
        has_words = metadata.mask_unit != "token"
        return cls(special, tokenizer.is_subword, _wanted(metadata), has_words, has_whole_sides)

    def broken(self, batch: FlatInstances) -> dict[str, NDArray[np.int64]]:
        """Return the rows of a batch, in which `find_nonsense` finds nothing, that break a rule, by rule."""
        from data_prep.checks.invariant_loops import first_broken

        broken_R = np.empty(len(batch.rows), np.uint8)
        first_broken(batch, self, broken_R)
        return {rule: rows for number, rule in enumerate(RULES) if len(rows := np.flatnonzero(broken_R == number))}


def _wanted(metadata: ShardMetadata) -> NDArray[np.int64]:
    """Return how many predictions google-research/bert makes in instances of each length; its specials get none."""
    lengths, specials = np.arange(metadata.max_seq_length + 1), 2 if metadata.objective == "none" else 3
    if metadata.masking == "dynamic":
        return np.zeros_like(lengths)
    return np.minimum(count_predictions(lengths, metadata.masking_options), np.maximum(lengths - specials, 0))
