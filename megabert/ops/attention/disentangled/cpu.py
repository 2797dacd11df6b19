"""The backend of ``disentangled_attention`` in plain torch, on any device.

Contents are multiplied with the positions of all 2 * S - 1 distances at once, and the matrix of scores is a view of
that product in which each row starts one element before the row above: nothing of shape (S, S) is gathered.
"""

# T packed tokens, B sequences, G sequences of a group, S tokens, N heads, H head width, D = N * H,
# P relative positions, E = 2 * S - 1 distances

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from megabert.ops.attention.dense.cpu import grouped_attention
from megabert.ops.dense import embedding
from megabert.ops.dropout import Heads
from megabert.ops.sequences import Groups, groups_of_equal_length, padded_groups

PROBABILITIES = 1 << 19
"""Attention probabilities in a group on a CPU: 2 MiB in float32."""


@dataclass(frozen=True)
class RelativePositions:
    """Keys and queries of relative positions, and which of them belongs to a distance."""

    key_PD: Tensor | None
    """Keys of positions; None if the model has no content-to-position scores (c2p)."""
    query_PD: Tensor | None
    """Queries of positions; None if the model has no position-to-content scores (p2c)."""
    position_E: Tensor
    """Int32 or int64 of shape (2 * longest - 1,): the row for each distance i - j, from -(longest - 1) on, in
    ascending order: the distances that share a row are neighbours."""

    @property
    def kinds(self) -> int:
        """Number of summands of a score, content to content among them: 1 to 3."""
        return 1 + (self.key_PD is not None) + (self.query_PD is not None)


@dataclass(frozen=True)
class DisentangledSequences:
    """The sequences of a micro-batch as ``disentangled_attention`` reads them; the same for every layer."""

    cu_seqlens: Tensor
    """Int32 of shape (B + 1,), where each sequence starts; the last number is the end of the last one. Sequences of
    length 0 are allowed. Tokens past the last boundary belong to no sequence and get zeros."""
    max_seqlen: int
    """At least the longest length."""
    groups: Groups | None = None
    """Layout of plain torch; None works it out in each call."""


def score_divisor(head_width: int, kinds: int) -> float:
    """Return sqrt(H * kinds), by which the sum of the kinds of scores is divided (section 3.1)."""
    return math.sqrt(head_width * kinds)


def plan_groups(cu_seqlens: Tensor, *, tokens: int, max_seqlen: int, num_heads: int) -> Groups:
    """Lay sequences out in groups: by length on a CPU, padded elsewhere.

    Args:
        cu_seqlens: Int32 of shape (B + 1,), where each sequence starts.
        tokens: T, padding included.
        max_seqlen: At least the longest length.
        num_heads: N.
    """
    if cu_seqlens.device.type != "cpu":
        return padded_groups(cu_seqlens, tokens=tokens, max_seqlen=max_seqlen, num_heads=num_heads)
    groups = groups_of_equal_length(cu_seqlens, tokens=tokens, num_heads=num_heads, probabilities=PROBABILITIES)
    if groups.shapes:
        return groups
    # No sequences: one slot that no token reads, so that gradients of zero reach every parameter.
    number = torch.tensor([len(cu_seqlens) - 1])
    return Groups(((1, 1),), torch.zeros(1, dtype=torch.int64), groups.slot_T + 1, None, number)


def disentangled_attention_torch(
    qkv_TC: Tensor, positions: RelativePositions, sequences: DisentangledSequences, heads: Heads
) -> Tensor:
    """Run ``api.disentangled_attention`` group by group; 16 bits on a CPU work in float32."""
    groups = sequences.groups
    if groups is None:
        sizes = {"tokens": len(qkv_TC), "max_seqlen": sequences.max_seqlen, "num_heads": heads.num_heads}
        groups = plan_groups(sequences.cu_seqlens, **sizes)
    scores = partial(_scores, positions=positions)
    return grouped_attention(qkv_TC, groups, scores, heads)


def position_scores(x_NGSH: Tensor, position_PD: Tensor, position_E: Tensor) -> Tensor:
    """Return for tokens a and b the product of x_a with the position of their distance, of shape (N, G, S, S).

    Args:
        x_NGSH: Keys or queries of contents, contiguous.
        position_PD: Queries or keys of positions.
        position_E: The row for each distance, in ascending order of b - a, from -(S - 1) on.
    """
    heads, count, length, width = x_NGSH.shape
    # A lookup as an embedding: its gradient adds up the rows of one position in a fixed order.
    by_distance_NEH = embedding(position_E, position_PD).unflatten(1, (heads, width)).transpose(0, 1)
    row = position_E.numel()  # 2 * length - 1 products a token, one for each distance
    flat = x_NGSH.view(heads, count * length, width) @ by_distance_NEH.mT
    # The score of (a, b) is product length - 1 + b - a of token a. From one row to the next it moves by row - 1, so a
    # view with that stride reads all scores in place.
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
