"""Attention over full sequences, with inputs for it: BERT's, DeBERTa's, and other packages' kernels for the latter."""

# T packed tokens, D hidden, N heads, H head width

import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.sizes import Sizes
from megabert.ops.attention.dense.api import attention
from megabert.ops.attention.dense.cpu import DenseSequences
from megabert.ops.attention.disentangled.api import disentangled_attention, plan_disentangled_attention
from megabert.ops.attention.disentangled.cpu import RelativePositions, score_divisor
from megabert.ops.dropout import attention_dropout
from megabert.ops.proof.inputs import boundaries, dropout_stream, near_positions

Op = Callable[..., Tensor]


def packed_attention(sizes: Sizes, length: int, device: torch.device, backend: str) -> tuple[Op, Tensor]:
    """Return attention over full sequences of a length, dropout on, and packed queries, keys and values for it."""
    heads, count = sizes.heads, max(1, sizes.tokens // length)
    sequences = DenseSequences(boundaries([length] * count, device), length)
    stream = dropout_stream([length] * count, count * length, device)
    options: dict[str, Any] = {
        "num_heads": heads,
        "dropout": attention_dropout(stream, layer=0, probability=0.1, num_heads=heads),
    }
    qkv = torch.randn(count * length, 3 * sizes.hidden, device=device).to(torch.bfloat16).requires_grad_()
    return lambda qkv: attention(qkv, sequences, backend=backend, **options), qkv


def packed_disentangled_attention(
    sizes: Sizes, length: int, device: torch.device, backend: str
) -> tuple[Op, tuple[Tensor, ...]]:
    """Return attention with relative positions over full sequences, dropout on, and contents and positions for it."""
    heads, count = sizes.rotary_heads, max(1, sizes.tokens // length)
    width, tokens = heads * sizes.hidden // sizes.heads, count * length
    position_E = near_positions(length, sizes.span)
    rows, position_E = int(position_E[-1]) + 1, position_E.to(device)
    stream = dropout_stream([length] * count, tokens, device)
    options: dict[str, Any] = {
        "num_heads": heads,
        "dropout": attention_dropout(stream, layer=0, probability=0.1, num_heads=heads),
    }
    sequences = plan_disentangled_attention(
        boundaries([length] * count, device), tokens=tokens, max_seqlen=length, num_heads=heads, backend=backend
    )

    def run(qkv: Tensor, key: Tensor, query: Tensor) -> Tensor:
        positions = RelativePositions(key[:rows], query[:rows], position_E)
        return disentangled_attention(qkv, positions, sequences, backend=backend, **options)

    shapes = ((tokens, 3 * width), (2 * sizes.span, width), (2 * sizes.span, width))
    return run, tuple(torch.randn(shape, device=device).to(torch.bfloat16).requires_grad_() for shape in shapes)


def disentangled_peers(sizes: Sizes, length: int, device: torch.device) -> dict[str, Op]:
    """Return other kernels for the leaves of ``packed_disentangled_attention``, as far as their packages are there.

    FlashDeBERTa (0.0.8) drops nothing, and maps distances to rows of the whole table by itself. The function of
    DisentangledFlash (1.1.1) is not among its public names: the module that calls it projects as well.
    """
    heads, head_width, span = sizes.rotary_heads, sizes.hidden // sizes.heads, sizes.span
    count, scale = max(1, sizes.tokens // length), 1 / score_divisor(head_width, 3)
    tokens, bounds = count * length, boundaries([length] * count, device)
    peers: dict[str, Op] = {}

    def by_head(positions: Tensor) -> Tensor:
        return positions.view(-1, heads, head_width).transpose(0, 1)

    if importlib.util.find_spec("flashdeberta") is not None:
        from flashdeberta.ops.flash_attention_varlen import flash_attention_with_disentangled_varlen

        def flashdeberta(qkv: Tensor, key: Tensor, query: Tensor) -> Tensor:
            q, k, v = qkv.view(tokens, 3, heads, head_width).unbind(1)
            packed = (bounds, bounds, length, length, False, scale, span, 2 * span)
            tables = (by_head(key)[None], by_head(query)[None])
            return flash_attention_with_disentangled_varlen(q, k, v, *tables, *packed).reshape(tokens, -1)

        peers["flashdeberta, no dropout"] = flashdeberta
    if importlib.util.find_spec("disentangled_flash") is not None:
        from disentangled_flash.position import gradient_band
        from disentangled_flash.training._kernels import training_attention_packed

        position_E = near_positions(length, span).to(device)
        options: dict[str, Any] = {"max_seqlen": length, "score_scale": scale, "strict_fp32": True, "dropout_p": 0.1}
        options["gradient_band"] = gradient_band(position_E, device)

        def disentangled_flash(qkv: Tensor, key: Tensor, query: Tensor) -> Tensor:
            q, k, v = qkv.view(tokens, 3, heads, head_width).permute(1, 2, 0, 3).contiguous().unbind(0)
            tables = (by_head(key).contiguous(), by_head(query).contiguous())
            return training_attention_packed(q, k, v, *tables, position_E, bounds, **options).reshape(tokens, -1)

        peers["disentangled-flash"] = disentangled_flash
    return peers
