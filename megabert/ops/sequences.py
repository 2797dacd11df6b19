"""Sequences end to end: the packed micro-batch as ops, models and loader know it, and which sequence a token is in.

For batched matrix products tokens are gathered into *slots*, group after group; the sequences of a group have one
length. On a CPU a group holds sequences of equal length and nothing is padded. Elsewhere every sequence gets the slots
of the longest, so that the host, which would wait for a GPU, need not know the lengths.
"""

# T packed tokens, M masked positions, B sequences, N tokens; padding may follow the real ones of each
# G sequences of a group, S tokens of a sequence, R slots (all tokens of all groups)

from dataclasses import dataclass

import torch
from torch import Tensor

PADDED_GROUP = 1 << 26
"""Attention probabilities in a padded group: 256 MiB in float32, so that temporary products do not grow with the
micro-batch."""


@dataclass(frozen=True, eq=False)
class PackedBatch:
    """Sequences end to end in one row of tokens, no padding in between.

    The encoder needs tokens, positions, segments, boundaries and seeds; the pre-training heads need the labels as well.
    Padding tokens (from ``cu_seqlens[-1]`` on) belong to no sequence, and padding sequences have length 0.
    """

    input_ids_T: Tensor
    """Int64 token ids, with the masks of pre-training applied."""
    position_ids_T: Tensor
    """Int64 position of each token in its sequence, from 0; all but the first may be shifted (`position_offsets`)."""
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


@dataclass(frozen=True)
class Groups:
    """How the tokens of one micro-batch are laid out in slots, group after group; the same for every layer."""

    shapes: tuple[tuple[int, int], ...]
    """Number of sequences and their length, group by group."""
    token_R: Tensor
    """Int64, the token in each slot."""
    slot_T: Tensor
    """Int64, the slot of each token; R for tokens of no sequence."""
    is_real_R: Tensor | None
    """Whether a slot holds a token of its sequence; None if all do."""
    order_B: Tensor
    """Int64, the numbers of the sequences in the order of groups; B for a group without a sequence."""

    @property
    def sizes(self) -> list[int]:
        """Slots of each group."""
        return [count * length for count, length in self.shapes]


def padded_groups(cu_seqlens: Tensor, *, tokens: int, max_seqlen: int, num_heads: int) -> Groups:
    """Give every sequence the slots of the longest one; the host reads no lengths.

    Args:
        cu_seqlens: Int32 of shape (B + 1,), where each sequence starts.
        tokens: T, padding included.
        max_seqlen: At least the longest length.
        num_heads: Number of heads.
    """
    starts_B, ends_B = cu_seqlens[:-1].long(), cu_seqlens[1:].long()
    index_BS = starts_B[:, None] + torch.arange(max_seqlen, device=cu_seqlens.device)
    real_BS = index_BS < ends_B[:, None]
    # The way back, from tokens to slots. Slots without a token write to one more element, which is cut off.
    slots = index_BS.numel()
    slot_BS = torch.arange(slots, device=cu_seqlens.device).view_as(index_BS)
    slot_T = torch.full((tokens + 1,), slots, device=cu_seqlens.device)
    slot_T = slot_T.index_put((torch.where(real_BS, index_BS, tokens),), torch.where(real_BS, slot_BS, slots))
    token_R = torch.where(real_BS, index_BS, 0).flatten()
    # The sequences of a group make at most PADDED_GROUP probabilities together, but a group has at least one.
    step = max(1, PADDED_GROUP // max(1, num_heads * max_seqlen * max_seqlen))
    shapes = [(min(step, len(starts_B) - first), max_seqlen) for first in range(0, len(starts_B), step)]
    order_B = torch.arange(len(starts_B), device=cu_seqlens.device)
    return Groups(tuple(shapes), token_R, slot_T[:tokens], real_BS.flatten(), order_B)


def groups_of_equal_length(cu_seqlens: Tensor, *, tokens: int, num_heads: int, probabilities: int) -> Groups:
    """Put sequences of one length next to each other, on the CPU; no slot is padding.

    Args:
        cu_seqlens: Int32 of shape (B + 1,), where each sequence starts.
        tokens: T, padding included.
        num_heads: Number of heads.
        probabilities: Attention probabilities in a group; it has one sequence at least.
    """
    lengths_B = cu_seqlens.diff()
    none = torch.empty(0, dtype=torch.int64)
    shapes, tokens_R, order = [], [none], [none]
    for length in lengths_B[lengths_B > 0].unique().tolist():  # on a CPU: nothing waits
        numbers = (lengths_B == length).nonzero()[:, 0]
        for numbers_G in numbers.split(max(1, probabilities // (num_heads * length * length))):
            shapes.append((len(numbers_G), length))
            tokens_R.append((cu_seqlens[numbers_G].long()[:, None] + torch.arange(length)).flatten())
            order.append(numbers_G)
    token_R = torch.cat(tokens_R)
    slot_T = torch.full((tokens,), len(token_R)).index_put((token_R,), torch.arange(len(token_R)))
    return Groups(tuple(shapes), token_R, slot_T, None, torch.cat(order))
