"""What a model asks of a packed micro-batch, whoever builds it."""

# T packed tokens, B sequences, M masked positions

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor


class PackedBatch(Protocol):
    """Sequences end to end in one row of tokens; DESIGN.md section 5. Read-only, so that frozen classes fit."""

    @property
    def input_ids_T(self) -> Tensor:
        """Int64."""

    @property
    def position_ids_T(self) -> Tensor:
        """Int64, from 0 in each sequence."""

    @property
    def segment_ids_T(self) -> Tensor:
        """Int64, 0 or 1."""

    @property
    def cu_seqlens(self) -> Tensor:
        """Int32 of shape (B + 1,), where each sequence starts; tokens past the last belong to no sequence."""

    @property
    def masked_positions_M(self) -> Tensor:
        """Int64 index into the T tokens."""

    @property
    def masked_ids_M(self) -> Tensor:
        """Int64, the original tokens; -100 on padding."""

    @property
    def next_sentence_label_B(self) -> Tensor:
        """Int64; -100 on padding and without the objective."""

    @property
    def instance_seeds_B(self) -> Tensor:
        """Int32, keys of dropout."""

    @property
    def max_seqlen(self) -> int:
        """At least the longest sequence."""


@dataclass(frozen=True)
class Packing:
    """What every layer needs to know of the sequences."""

    cu_seqlens: Tensor
    """Int32 of shape (B + 1,)."""
    max_seqlen: int
    """At least the longest length."""
    plan: Any
    """Of ``ops.attention.plan_attention``, or of ``ops.disentangled.plan_groups``."""
    relative: Any = None
    """DeBERTa: what the encoder's ``RelativeEmbedding`` returns."""
