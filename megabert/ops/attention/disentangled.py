"""Attention with scores of relative positions (He et al. 2021, section 3.1), in plain torch on any device.

    score(i, j) = (q_i . k_j + q_i . pk_d + k_j . pq_d) / sqrt(H * (1 + position scores)),   d = i - j

``pk`` and ``pq`` are keys and queries of relative positions; either may be left out. Contents are multiplied with the
positions of all 2 * S - 1 distances at once, and the matrix of scores is a view of that product in which each row
starts one element before the row above: nothing of shape (S, S) is gathered. On a CPU sequences of one length share
batched products; elsewhere all are padded to the longest, so that the host need not know the lengths.
"""

# T packed tokens, B sequences, G sequences of a group, S tokens, N heads, H head width, D = N * H,
# P relative positions, E = 2 * S - 1 distances, R slots (all tokens of all groups)

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from megabert.ops.attention.dropout import AttentionDropout, keep_mask
from megabert.ops.backend import Backend, choose, no_obstacle

BLOCK = 1 << 19
"""Attention probabilities in a group on a CPU: 2 MiB in float32."""
PADDED_BLOCK = 1 << 26
"""The same elsewhere: 256 MiB, so that temporary products do not grow with the micro-batch."""


@dataclass(frozen=True)
class RelativePositions:
    """Keys and queries of relative positions, and which of them belongs to a distance."""

    key_PD: Tensor | None
    """Keys of positions; None where the model has no content-to-position scores (c2p)."""
    query_PD: Tensor | None
    """Queries of positions; None where the model has no position-to-content scores (p2c)."""
    position_E: Tensor
    """Int64 of shape (2 * longest - 1,): the row for each distance i - j, from -(longest - 1) on."""

    @property
    def kinds(self) -> int:
        """Number of summands of a score, content to content among them: 1 to 3."""
        return 1 + (self.key_PD is not None) + (self.query_PD is not None)


@dataclass(frozen=True)
class Groups:
    """How the tokens of one micro-batch are laid out in slots, group after group; the same for every layer."""

    shapes: tuple[tuple[int, int], ...]
    """Sequences and their length, group by group."""
    token_R: Tensor
    """Int64, the token in each slot."""
    slot_T: Tensor
    """Int64, the slot of each token; R for tokens of no sequence."""
    is_real_R: Tensor | None
    """Whether a slot holds a token of its sequence; None where all do."""
    order_B: Tensor
    """Int64, the numbers of the sequences in the order of groups; B where a group stands for no sequence."""


def score_divisor(head_width: int, kinds: int) -> float:
    """Return sqrt(H * kinds), which the sum of so many kinds of scores is divided by (section 3.1)."""
    return math.sqrt(head_width * kinds)


def plan_groups(cu_seqlens: Tensor, *, tokens: int, max_seqlen: int, num_heads: int) -> Groups:
    """Lay sequences out in groups: by length on a CPU, padded elsewhere.

    Args:
        cu_seqlens: Int32 of shape (B + 1,), where each sequence starts.
        tokens: T, padding included.
        max_seqlen: At least the longest length.
        num_heads: N.
    """
    if cu_seqlens.device.type == "cpu":
        return groups_of_equal_length(cu_seqlens, tokens=tokens, num_heads=num_heads)
    return padded_groups(cu_seqlens, tokens=tokens, max_seqlen=max_seqlen, num_heads=num_heads)


def padded_groups(cu_seqlens: Tensor, *, tokens: int, max_seqlen: int, num_heads: int) -> Groups:
    """Give every sequence the slots of the longest one; the host, which would wait for a GPU, reads no lengths."""
    starts_B, ends_B = cu_seqlens[:-1].long(), cu_seqlens[1:].long()
    index_BS = starts_B[:, None] + torch.arange(max_seqlen, device=cu_seqlens.device)
    real_BS = index_BS < ends_B[:, None]
    # The way back, from tokens to slots. Slots without a token write to one more element, which is cut off.
    slots = index_BS.numel()
    slot_BS = torch.arange(slots, device=cu_seqlens.device).view_as(index_BS)
    slot_T = torch.full((tokens + 1,), slots, device=cu_seqlens.device)
    slot_T = slot_T.index_put((torch.where(real_BS, index_BS, tokens),), torch.where(real_BS, slot_BS, slots))
    token_R = torch.where(real_BS, index_BS, 0).flatten()
    # As many sequences in a group as have PADDED_BLOCK probabilities together, and at least one.
    step = max(1, PADDED_BLOCK // (num_heads * max_seqlen * max_seqlen))
    shapes = [(min(step, len(starts_B) - first), max_seqlen) for first in range(0, len(starts_B), step)]
    order_B = torch.arange(len(starts_B), device=cu_seqlens.device)
    return Groups(tuple(shapes), token_R, slot_T[:tokens], real_BS.flatten(), order_B)


def groups_of_equal_length(cu_seqlens: Tensor, *, tokens: int, num_heads: int) -> Groups:
    """Put sequences of one length next to each other, on the CPU; no slot is padding."""
    lengths_B = cu_seqlens.diff()
    slot_T = torch.full((tokens,), -1)
    shapes, tokens_R, order, slots = [], [], [], 0
    for length in lengths_B[lengths_B > 0].unique().tolist():
        order.append((lengths_B == length).nonzero()[:, 0])
        for numbers_G in order[-1].split(max(1, BLOCK // (num_heads * length * length))):
            starts_G = cu_seqlens[numbers_G].long()
            token_GS = starts_G[:, None] + torch.arange(length)
            slot_T[token_GS] = slots + torch.arange(token_GS.numel()).view_as(token_GS)
            shapes.append((len(starts_G), length))
            tokens_R.append(token_GS.flatten())
            slots += token_GS.numel()
    if not shapes:  # no sequences: one slot that no token reads, so that gradients of zero reach every parameter
        shapes, tokens_R, slots = [(1, 1)], [torch.zeros(1, dtype=torch.int64)], 1
        order = [torch.tensor([len(lengths_B)])]
    return Groups(tuple(shapes), torch.cat(tokens_R), torch.where(slot_T < 0, slots, slot_T), None, torch.cat(order))


def disentangled_attention(
    qkv_TC: Tensor,
    positions: RelativePositions,
    *,
    groups: Groups,
    num_heads: int,
    dropout: AttentionDropout | None = None,
    backend: str = "auto",
) -> Tensor:
    """Mix tokens within each sequence by what they are and how far apart they are.

    Args:
        qkv_TC: Queries, keys and values of shape (T, 3 * D), each (N, H).
        positions: Keys and queries of relative positions, projected by the same layer.
        groups: What ``plan_groups`` returned for these sequences.
        num_heads: N.
        dropout: Dropout of the probabilities; None drops nothing.
        backend: ``auto`` or ``torch``.

    Returns:
        Shape (T, D) in the dtype of ``qkv_TC``, zero at tokens of no sequence; the softmax is float32 or better.

    Raises:
        KernelError: The backend does not have this op.
    """
    # There is one backend; this refuses the others by name. On a CPU 16 bits work in float32.
    choose("disentangled_attention", backend, BACKENDS, qkv_TC.device.type)
    compute = torch.promote_types(qkv_TC.dtype, torch.float32) if qkv_TC.device.type == "cpu" else qkv_TC.dtype
    sizes = [count * length for count, length in groups.shapes]
    # From tokens to slots. One gather and one split: the gradient of each is one pass, whatever the number of groups.
    parts = qkv_TC.to(compute).index_select(0, groups.token_R).split(sizes)
    keys: Sequence[Tensor | None] = [None] * len(sizes)
    if dropout is not None:  # a key of 0 for a group of no sequence
        keys_BN = functional.pad(dropout.keys_BN(), (0, 0, 0, 1)).index_select(0, groups.order_B)
        keys = keys_BN.split([count for count, _ in groups.shapes])
    real: Sequence[Tensor | None] = [None] * len(sizes) if groups.is_real_R is None else groups.is_real_R.split(sizes)
    # Group by group: scores with the positions' added, softmax, context.
    contexts = []
    for shape, part, keys_GN, is_real in zip(groups.shapes, parts, keys, real, strict=True):
        q, k, v = part.view(*shape, 3, num_heads, -1).permute(2, 3, 0, 1, 4).contiguous().unbind(0)
        scores_NGSS = _scores(q, k, positions)
        if is_real is not None:  # a finite number, because a sequence of length 0 has no real key
            scores_NGSS = scores_NGSS.masked_fill(~is_real.view(*shape)[:, None, :], -1e30)
        weights_NGSS = scores_NGSS.softmax(-1)
        if dropout is not None and keys_GN is not None:
            weights_NGSS = weights_NGSS * keep_mask(dropout, keys_GN.T.flatten(), shape[1]).view_as(weights_NGSS)
            v = v * dropout.scale
        context_NGSH = weights_NGSS.to(compute) @ v
        contexts.append(context_NGSH.permute(1, 2, 0, 3).reshape(shape[0] * shape[1], -1))
    # Back from slots to tokens; those of no sequence read the row of zeros behind the last slot.
    zeros_1D = qkv_TC.new_zeros(1, contexts[0].shape[1], dtype=compute)
    return torch.cat([*contexts, zeros_1D]).index_select(0, groups.slot_T).to(qkv_TC.dtype)


def position_scores(x_NGSH: Tensor, position_PD: Tensor, position_E: Tensor) -> Tensor:
    """Return for tokens a and b the product of x_a with the position of their distance, of shape (N, G, S, S).

    Args:
        x_NGSH: Keys or queries of contents, contiguous.
        position_PD: Queries or keys of positions.
        position_E: The row for each distance, in ascending order of b - a, from -(S - 1) on.
    """
    heads, count, length, width = x_NGSH.shape
    # A lookup as an embedding: its gradient adds up the rows of one position in a fixed order.
    by_distance_NEH = functional.embedding(position_E, position_PD).unflatten(1, (heads, width)).transpose(0, 1)
    row = position_E.numel()  # 2 * length - 1 products a token, one for each distance
    flat = x_NGSH.view(heads, count * length, width) @ by_distance_NEH.mT
    # The score of (a, b) is product length - 1 + b - a of token a. From one row to the next it moves by row - 1, so a
    # view with that stride reads all scores where they are.
    strides = (count * length * row, length * row, row - 1, 1)
    return flat.contiguous().as_strided((heads, count, length, length), strides, length - 1)


def _scores(q_NGSH: Tensor, k_NGSH: Tensor, positions: RelativePositions) -> Tensor:
    """Return the scaled sum of all scores, added up in float32 or better."""
    scale = 1 / score_divisor(q_NGSH.shape[-1], positions.kinds)
    q_NGSH = q_NGSH * scale
    scores_NGSS = (q_NGSH @ k_NGSH.mT).to(torch.promote_types(q_NGSH.dtype, torch.float32))
    for part_NGSS in position_parts(q_NGSH, k_NGSH, positions, scale=scale):
        scores_NGSS = scores_NGSS + part_NGSS
    return scores_NGSS


def position_parts(
    scaled_q_NGSH: Tensor, k_NGSH: Tensor, positions: RelativePositions, *, scale: float
) -> Iterator[Tensor]:
    """Yield the scaled scores of contents with positions (c2p), and of positions with contents (p2c).

    Each is of shape (N, G, S, S), and there as far as ``positions`` has it.
    """
    # The table of distances is for the longest sequence: take the middle, which this group needs.
    length, longest = k_NGSH.shape[2], (positions.position_E.numel() + 1) // 2
    near_E = positions.position_E[longest - length : longest + length - 1]
    if positions.key_PD is not None:
        yield position_scores(scaled_q_NGSH, positions.key_PD.to(k_NGSH.dtype), near_E.flip(0))
    if positions.query_PD is not None:
        yield position_scores(k_NGSH, positions.query_PD.to(k_NGSH.dtype) * scale, near_E).mT


BACKENDS = (Backend("torch", disentangled_attention, no_obstacle),)
