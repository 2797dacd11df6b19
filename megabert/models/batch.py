"""What a model asks of a packed micro-batch, whoever builds it."""

# T packed tokens, B sequences, M masked positions

from typing import Protocol

from torch import Tensor


class PackedBatch(Protocol):
    """Sequences end to end in one row of tokens; DESIGN.md section 5."""

    input_ids_T: Tensor
    """Int64."""
    position_ids_T: Tensor
    """Int64, from 0 in each sequence."""
    segment_ids_T: Tensor
    """Int64, 0 or 1."""
    cu_seqlens: Tensor
    """Int32 of shape (B + 1,), where each sequence starts; tokens past the last belong to no sequence."""
    masked_positions_M: Tensor
    """Int64 index into the T tokens."""
    masked_ids_M: Tensor
    """Int64, the original tokens; -100 on padding."""
    next_sentence_label_B: Tensor
    """Int64; -100 on padding and without the objective."""
    instance_seeds_B: Tensor
    """Int32, keys of dropout."""
    max_seqlen: int
    """At least the longest sequence."""
