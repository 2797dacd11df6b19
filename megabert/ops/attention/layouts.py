"""How sequences of unequal lengths are laid out for batched matrix products, and attention in plain torch over that.

Tokens are gathered into *slots*, group after group; the sequences of a group have one length. On a CPU a group holds
sequences of equal length and nothing is padded. Elsewhere every sequence gets the slots of the longest, so that the
host, which would wait for a GPU, need not know the lengths.
"""

# T packed tokens, B sequences, G sequences of a group, S tokens, N heads, H head width, D = N * H, C = 3 * D,
# R slots (all tokens of all groups)

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from megabert.ops.attention.dropout import Heads, probability_mask

PADDED_GROUP = 1 << 26
"""Attention probabilities in a padded group: 256 MiB in float32, so that temporary products do not grow with the
micro-batch."""


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
        num_heads: N.
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
        num_heads: N.
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


def grouped_attention(
    qkv_TC: Tensor, groups: Groups, scores: Callable[[Tensor, Tensor], Tensor], heads: Heads
) -> Tensor:
    """Mix tokens within each sequence by softmax(scores) V, group by group.

    Args:
        qkv_TC: Queries, keys and values of shape (T, 3 * D), each (N, H).
        groups: Layout of these sequences.
        scores: Returns scores, float32 or better of shape (N, G, S, S), for queries and keys of shape (N, G, S, H).
        heads: Their number and dropout.

    Returns:
        Shape (T, D) in the dtype of ``qkv_TC``, zero at tokens of no sequence. On a CPU 16 bits work in float32.
    """
    num_heads, dropout = heads
    compute = torch.promote_types(qkv_TC.dtype, torch.float32) if qkv_TC.device.type == "cpu" else qkv_TC.dtype
    width = qkv_TC.shape[1] // 3
    # From tokens to slots. One gather and one split: the gradient of each is one pass, whatever the number of groups.
    parts = qkv_TC.to(compute).index_select(0, groups.token_R).split(groups.sizes)
    keys: Sequence[Tensor | None] = [None] * len(parts)
    if dropout is not None:  # a key of 0 for a group without a sequence
        keys_BN = functional.pad(dropout.keys_BN(), (0, 0, 0, 1)).index_select(0, groups.order_B)
        keys = keys_BN.split([count for count, _ in groups.shapes])
    real: Sequence[Tensor | None] = [None] * len(parts)
    if groups.is_real_R is not None:
        real = groups.is_real_R.split(groups.sizes)
    contexts = []
    for shape, part, keys_GN, is_real in zip(groups.shapes, parts, keys, real, strict=True):
        q, k, v = part.view(*shape, 3, num_heads, width // num_heads).permute(2, 3, 0, 1, 4).contiguous().unbind(0)
        scores_NGSS = scores(q, k)
        if is_real is not None:  # a finite number, because a sequence of length 0 has no real key
            scores_NGSS = scores_NGSS.masked_fill(~is_real.view(*shape)[:, None, :], -1e30)
        weights_NGSS = scores_NGSS.softmax(-1)
        if dropout is not None and keys_GN is not None:
            weights_NGSS = weights_NGSS * probability_mask(dropout, keys_GN.T.flatten(), shape[1]).view_as(weights_NGSS)
            v = v * dropout.scale
        context_NGSH = weights_NGSS.to(compute) @ v
        contexts.append(context_NGSH.permute(1, 2, 0, 3).reshape(shape[0] * shape[1], width))
    # Back from slots to tokens; tokens of no sequence read the row of zeros after the last slot.
    zeros_1D = qkv_TC.new_zeros(1, width, dtype=compute)
    return torch.cat([*contexts, zeros_1D]).index_select(0, groups.slot_T).to(qkv_TC.dtype)
