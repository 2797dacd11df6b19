"""Sequences end to end: the packed micro-batch as ops, models and loader know it, and which sequence a token is in."""

# T packed tokens, M masked positions, B sequences, N tokens; padding may follow the real ones of each

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class PackedBatch:
    """Sequences end to end in one row of tokens, no padding in between.

    The encoder needs tokens, positions, segments, boundaries and seeds; the pre-training heads need the labels as well.
    Padding tokens (from ``cu_seqlens[-1]`` on) belong to no sequence, and padding sequences have length 0.
    """

    input_ids_T: Tensor
    """Int64 token ids, with the masks of pre-training applied."""
    position_ids_T: Tensor
    """Int64 position of each token in its sequence, from 0; all but the first may be shifted (`PositionOffsets`)."""
    segment_ids_T: Tensor
    """Int64, 0 up to the first [SEP], 1 in the second segment."""
    cu_seqlens: Tensor
    """Int32 of shape (B + 1,), where each sequence starts; the last is the number of real tokens."""
    masked_positions_M: Tensor
    """Int64, the index in T of each token to predict; 0 on padding."""
    masked_ids_M: Tensor
    """Int64, the original ids of these tokens; -100 on padding."""
    next_sentence_label_B: Tensor
    """Int64, 1 if the second segment is a random one (or swapped, for SOP); -100 on padding and without NSP."""
    instance_seeds_B: Tensor
    """Int32 keys of dropout: they follow an instance to whatever rank and micro-batch the packing puts it."""
    max_seqlen: int
    """At least the length of the longest sequence; the phase's limit if shapes are padded."""


def sequence_numbers(cu_seqlens: Tensor, token_N: Tensor | int) -> Tensor:
    """Return the number of each token's sequence, of shape (N,); B for padding, which follows the last one.

    Args:
        cu_seqlens: Int32 of shape (B + 1,), where each sequence starts, and the last one's end.
        token_N: Indices of tokens, or how many first tokens.
    """
    if isinstance(token_N, int):
        token_N = torch.arange(token_N, dtype=cu_seqlens.dtype, device=cu_seqlens.device)
    return torch.searchsorted(cu_seqlens[1:].contiguous(), token_N.to(cu_seqlens.dtype), right=True)
