"""The shards that a recipe is meant for: what ``megabert-data build --for`` builds and ``megabert pretrain`` wants."""

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from megabert.settings.config.fields import STRICT


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ShardsConfig:
    """Settings of the build that a recipe is meant for; any value fits a field that is left out."""

    objective: Literal["nsp", "sop", "none"] | None = None
    """Objective in addition to masked tokens: nsp (next sentence), sop (sentence order), or none (full sentences in one
    segment)."""
    masking: Literal["static", "dynamic"] | None = None
    """When tokens are masked: static (in the shards) or dynamic (drawn again in every epoch)."""
    mask_unit: Literal["token", "whole_word", "span"] | None = None
    """Unit that is masked as a whole: single tokens, all pieces of a word, or runs of words."""
    masked_lm_prob: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Share of the tokens to predict."""
    max_predictions_per_seq: (
        Annotated[tuple[Annotated[int, Field(ge=1, le=2**25)], ...], Field(min_length=1)] | None
    ) = None
    """Most predictions in an instance, one number for each length of the phases, the shortest first."""
    dupe_factor: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Passes over the training documents, each with other pairs and masks."""
    min_tokens: Annotated[tuple[Annotated[int, Field(ge=0, le=2**25)], ...], Field(min_length=1)] | None = None
    """Tokens that a document needs to give instances, one number for each length of the phases, the shortest first."""
    pieces: Literal["wordpiece", "byte_bpe", "unigram"] | None = None
    """Kind of vocabulary that the build trains."""
    vocab_size: Annotated[int, Field(ge=64, le=2_000_000)] | None = None
    """Pieces of the vocabulary that the build trains."""
    uncased: bool | None = None
    """Whether the vocabulary that the build trains lower-cases and drops accents."""

    @property
    def planned_vocab_size(self) -> int:
        """Pieces of the vocabulary as long as there are no shards: `vocab_size`, or 30,522 as bert-base-uncased has."""
        return self.vocab_size or 30_522


PER_LENGTH = ("max_predictions_per_seq", "min_tokens")
"""Fields with one number for each length of the phases, the shortest first."""
