"""Local attention: each token attends to the tokens of its sequence that are near, in plain torch on any device.

    score(i, j) = q_i . k_j / sqrt(H)   where |i - j| <= reach, and i and j are in one sequence (Beltagy et al. 2020)

Tokens that are near in a sequence are near in the packed row as well. The row is therefore cut into blocks, wherever
sequences begin and end, and the queries of a block attend to the keys of three: their own block and its neighbours.
Memory and time grow with the number of tokens, not with the square of a sequence's length, and no length is read.
"""

# T packed tokens, B sequences, N heads, H head width, D = N * H, C = 3 * D,
# K blocks, Q queries of a block, X = 3 * Q keys that they may see

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from megabert.ops.dropout import AttentionDropout, Heads, probability_elements
from megabert.ops.sequences import sequence_numbers

SMALLEST_BLOCK = 16
"""Queries of a block where the reach is shorter: matrix products of a few rows are slow."""


@dataclass(frozen=True)
class Band:
    """Which tokens of one micro-batch see each other; the same for every layer with local attention."""

    is_seen_KQX: Tensor
    """Whether a query sees a key."""
    sequence_KQ: Tensor
    """Int64, the number of each query's sequence; B for padding."""
    position_KX: Tensor
    """Int32, the position of each key in its sequence."""
    is_real_T: Tensor
    """Whether a token belongs to a sequence."""


def plan_band(cu_seqlens: Tensor, position_ids_T: Tensor, *, reach: int) -> Band:
    """Work out once for all layers of a micro-batch which tokens see each other.

    Args:
        cu_seqlens: Int32 of shape (B + 1,), where each sequence starts. Tokens past the last boundary belong to none.
        position_ids_T: Int64, position of each token in its sequence.
        reach: How many tokens to each side a token sees, 1 or more.
    """
    size, count = max(reach, SMALLEST_BLOCK), len(cu_seqlens) - 1
    sequence_T = sequence_numbers(cu_seqlens, len(position_ids_T))
    # Slots after the last token and before the first one see only each other.
    sequence_KX = _neighbours(sequence_T, size, filling=-1)
    sequence_KQ = sequence_KX[:, size : 2 * size]
    distance_QX = torch.arange(3 * size) - size - torch.arange(size)[:, None]
    is_near_QX = (distance_QX.abs() <= reach).to(cu_seqlens.device)
    return Band(
        (sequence_KQ[:, :, None] == sequence_KX[:, None, :]) & is_near_QX,
        sequence_KQ % (count + 1),
        _neighbours(position_ids_T.to(torch.int32), size),
        sequence_T < count,
    )


def windowed_attention(qkv_TC: Tensor, band: Band, heads: Heads) -> Tensor:
    """Mix near tokens within each sequence: softmax(Q K^T / sqrt(H)) V per head over the keys that a query sees.

    Args:
        qkv_TC: Queries, keys and values of shape (T, 3 * D), each (N, H).
        band: What ``plan_band`` returned for these sequences.
        heads: Their number and dropout.

    Returns:
        Shape (T, D) in the dtype of ``qkv_TC``, zero at tokens of no sequence; the softmax is float32 or better.
    """
    size, tokens = band.is_seen_KQX.shape[1], len(qkv_TC)
    single = torch.promote_types(qkv_TC.dtype, torch.float32)
    compute = single if qkv_TC.device.type == "cpu" else qkv_TC.dtype
    q_TNH, k_TNH, v_TNH = qkv_TC.to(compute).unflatten(-1, (3, heads.num_heads, -1)).unbind(1)
    q_KNQH = _blocks(q_TNH / math.sqrt(q_TNH.shape[-1]), size).transpose(1, 2)
    k_KNXH, v_KNXH = (_neighbours(x_TNH, size).transpose(1, 2) for x_TNH in (k_TNH, v_TNH))
    # Every query sees itself, so that no softmax is over nothing.
    scores_KNQX = (q_KNQH @ k_KNXH.mT).to(single).masked_fill(~band.is_seen_KQX[:, None], -torch.inf)
    weights_KNQX = scores_KNQX.softmax(-1)
    if heads.dropout is not None:
        weights_KNQX = weights_KNQX * _probability_mask(heads.dropout, band) * heads.dropout.scale
    context_KQNH = (weights_KNQX.to(compute) @ v_KNXH).transpose(1, 2)
    context_TD = context_KQNH.flatten(2).flatten(0, 1)[:tokens]
    return context_TD.masked_fill(~band.is_real_T[:, None], 0).to(qkv_TC.dtype)


def _blocks(x_T: Tensor, size: int, *, filling: int = 0) -> Tensor:
    """Cut a row of tokens into blocks of ``size``, the last one filled up: (T, ...) to (K, size, ...)."""
    missing = -len(x_T) % size
    return functional.pad(x_T, (*[0] * (2 * x_T.dim() - 2), 0, missing), value=filling).unflatten(0, (-1, size))


def _neighbours(x_T: Tensor, size: int, *, filling: int = 0) -> Tensor:
    """Return each block with the one before it and the one after it, of shape (K, 3 * size, ...)."""
    blocks = functional.pad(_blocks(x_T, size, filling=filling), (*[0] * (2 * x_T.dim()), 1, 1), value=filling)
    # Copies, not a view whose rows overlap: the gradient is then three sums in a fixed order.
    return torch.cat([blocks[:-2], blocks[1:-1], blocks[2:]], 1)


def _probability_mask(dropout: AttentionDropout, band: Band) -> Tensor:
    """Return which probabilities survive, of shape (K, N, Q, X); where blocks begin does not matter."""
    size = band.is_seen_KQX.shape[1]
    # Padding reads a row of zeros after the last sequence.
    keys_BN = functional.pad(dropout.keys_BN(), (0, 0, 0, 1))
    keys_KNQ1 = keys_BN[band.sequence_KQ].transpose(1, 2)[..., None]
    query_K1Q1 = band.position_KX[:, None, size : 2 * size, None]
    return probability_elements(dropout, keys_KNQ1, query_K1Q1, band.position_KX[:, None, None, :])
