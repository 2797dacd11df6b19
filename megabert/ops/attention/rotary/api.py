"""The public ``rotary_attention``: ModernBERT's.

Queries and keys are turned by angles that grow with the position (Su et al. 2021, section 3.2.2), so that a score
depends on the distance of its two tokens; then each query attends to its whole sequence, or to the tokens of it that
are near (Beltagy et al. 2020).
"""

# T packed tokens, B sequences, N heads, H head width, E = H / 2 pairs of a head, D = N * H, C = 3 * D,
# P rows of a table of turns: T tokens, or the positions of the longest sequence

import functools
from dataclasses import replace

import torch
from torch import Tensor

from megabert.ops.attention.dense.cpu import plan_blocks
from megabert.ops.attention.rotary.cpu import RotarySequences, rotary_attention_torch, rotary_attention_varlen
from megabert.ops.attention.windowed import plan_band
from megabert.ops.backend import BACKENDS, choose
from megabert.ops.dropout import AttentionDropout, Heads


def plan_rotary_attention(
    cu_seqlens: Tensor,
    position_ids_T: Tensor,
    *,
    max_seqlen: int,
    num_heads: int,
    reach: int,
    has_dropout: bool = False,
    backend: str = "auto",
) -> RotarySequences:
    """Work out once for all layers of a micro-batch what attention needs to know of its sequences.

    Args:
        cu_seqlens: Int32 of shape (B + 1,), where each sequence starts. Tokens past the last boundary belong to none.
        position_ids_T: Int64, position of each token in its sequence.
        max_seqlen: At least the longest length.
        num_heads: N.
        reach: How many tokens to each side a token sees in layers that do not see all, 1 or more.
        has_dropout: Whether probabilities are dropped.
        backend: The same as for ``rotary_attention``.
    """
    device = cu_seqlens.device
    run = choose("rotary_attention", backend, device.type, WITH_DROPOUT if has_dropout else None)
    if run is rotary_attention_varlen:
        return RotarySequences(cu_seqlens, max_seqlen, position_ids_T)
    if run is not rotary_attention_torch:
        return RotarySequences(cu_seqlens, max_seqlen, torch.arange(max_seqlen, device=device))
    blocks = None
    if device.type == "cpu":
        blocks = plan_blocks(cu_seqlens, tokens=len(position_ids_T), num_heads=num_heads)
    band = plan_band(cu_seqlens, position_ids_T, reach=reach)
    return RotarySequences(cu_seqlens, max_seqlen, position_ids_T, blocks, band)


def turns_of(positions_P: Tensor, base: float, head_width: int) -> Tensor:
    """Return cosines and sines of the angles ``position / base ** (2 * pair / H)``, float32 of shape (P, 2, E).

    Args:
        positions_P: Positions, as ``RotarySequences`` has them.
        base: How much slower the slowest pair turns than the first, nearly.
        head_width: H, an even number.
    """
    angle_PE = positions_P.float()[:, None] * _speeds(base, head_width, positions_P.device)
    return torch.stack([angle_PE.cos(), angle_PE.sin()], 1)


@functools.lru_cache(maxsize=256)
def _speeds(base: float, head_width: int, device: torch.device) -> Tensor:
    """Return each pair's speed, float32 of shape (E,), copied to a device once: the host waits for such a copy."""
    with torch.inference_mode(False):  # the one tensor serves training and inference
        # In float32, step by step as when the published weights were trained.
        exponent_E = torch.arange(0, head_width, 2, dtype=torch.float32, device="cpu") / head_width
        return (1.0 / base**exponent_E).to(device)


def rotary_attention(
    qkv_TC: Tensor,
    turns_P2E: Tensor,
    sequences: RotarySequences,
    *,
    reach: int | None,
    num_heads: int,
    dropout: AttentionDropout | None = None,
    backend: str = "auto",
) -> Tensor:
    """Mix tokens within each sequence: softmax(R(Q) R(K)^T / sqrt(H)) V per head, R turning each row by its position.

    Args:
        qkv_TC: Queries, keys and values of shape (T, 3 * D), each (N, H). Element e of the first half of a head and
            element e of the second half are a pair that turns.
        turns_P2E: What ``turns_of`` returned for the positions of ``sequences``.
        sequences: What ``plan_rotary_attention`` returned for the same backend.
        reach: How many tokens to each side a query sees, as it was planned; None: the whole sequence.
        num_heads: N.
        dropout: Dropout of the probabilities; None drops nothing.
        backend: ``auto``, ``triton``, ``varlen`` (torch's, without dropout) or ``torch``.

    Returns:
        Shape (T, D) in the dtype of ``qkv_TC``, zero at tokens of no sequence; the softmax is float32 or better.

    Raises:
        KernelError: The backend cannot run here.
    """
    is_plain = dropout is None and qkv_TC.itemsize == 2
    run = choose("rotary_attention", backend, qkv_TC.device.type, None if is_plain else WITH_DROPOUT)
    return run(qkv_TC, turns_P2E, sequences, Heads(num_heads, dropout), reach=reach)


_triton, _varlen, _torch = BACKENDS["rotary_attention"]
WITH_DROPOUT = (_triton, replace(_varlen, obstacle=lambda _: "it takes 16 bits and drops no probabilities"), _torch)
"""The backends for dropout of attention probabilities, and for float32."""
