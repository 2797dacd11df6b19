"""``rotary_attention`` on Triton kernels: launches, and the tensors kept between the passes."""

# T packed tokens, B sequences, N heads, H head width, E = H / 2 pairs, D = N * H, C = 3 * D, S positions,
# R rows of ``lse`` and ``delta``: T and room after each sequence

import math
from typing import Any

import torch
from torch import Tensor

from megabert.ops.attention.dense.triton import LOG2_E, launch_options, seeds_and_constants
from megabert.ops.attention.rotary.backward_kernels import (
    rotary_attention_backward_keys,
    rotary_attention_backward_queries,
)
from megabert.ops.attention.rotary.cpu import RotarySequences
from megabert.ops.attention.rotary.kernels import rotary_attention_forward, rotary_turn
from megabert.ops.dropout import Heads, threshold_and_scale
from megabert.ops.triton_support.input_checks import require_heads
from megabert.ops.triton_support.tile_sizes import capability_of, power_of_two, rotary_tiles


def rotary_attention_triton(
    qkv_TC: Tensor, turns_S2E: Tensor, sequences: RotarySequences, heads: Heads, *, reach: int | None
) -> Tensor:
    """Run ``api.rotary_attention`` on a CUDA device; products of 16-bit numbers, sums and softmax in float32."""
    require_heads(qkv_TC, heads.num_heads)
    return _RotaryAttention.apply(qkv_TC, turns_S2E, sequences.cu_seqlens, reach or 0, heads)


class _RotaryAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv_TC: Tensor, turns_S2E: Tensor, cu_seqlens: Tensor, reach: int, heads: Heads) -> Tensor:
        num_heads, dropout = heads
        qkv_TC = qkv_TC.contiguous()
        tokens, head_width = qkv_TC.shape[0], qkv_TC.shape[1] // (3 * num_heads)
        tiles = rotary_tiles(
            capability_of(qkv_TC.device),
            head_width=head_width,
            has_window=reach > 0,
            has_dropout=dropout is not None,
            itemsize=qkv_TC.itemsize,
        )
        count = _tiles_of(tokens, cu_seqlens, tiles.forward.rows)
        is_turned = not (reach and tiles.may_turn)
        pairs = max(16, power_of_two(head_width // 2))  # tl.dot takes 16 at least
        constants = {"REACH": reach, "IS_TURNED": is_turned, "BLOCK_E": pairs}
        if is_turned:
            qkv_TC = _turned(qkv_TC, turns_S2E, cu_seqlens, num_heads)
        out_TD = torch.empty(tokens, num_heads * head_width, dtype=qkv_TC.dtype, device=qkv_TC.device)
        lse_NR = out_TD.new_empty(num_heads, count * tiles.forward.rows, dtype=torch.float32)
        rotary_attention_forward[(count * num_heads,)](
            *(qkv_TC, turns_S2E, cu_seqlens, *seeds_and_constants(dropout), out_TD, lse_NR),
            *(tokens, lse_NR.shape[1], cu_seqlens.numel() - 1, num_heads),
            *(LOG2_E / math.sqrt(head_width), *threshold_and_scale(dropout)),
            **constants,
            **launch_options(tiles.forward, head_width),
        )
        ctx.save_for_backward(qkv_TC, turns_S2E, cu_seqlens, out_TD, lse_NR)
        ctx.constants = (heads, tiles, constants)
        return out_TD

    @staticmethod
    def backward(ctx: Any, grad_TD: Tensor) -> tuple[Tensor | None, ...]:
        qkv_TC, turns_S2E, cu_seqlens, out_TD, lse_NR = ctx.saved_tensors
        (num_heads, dropout), tiles, constants = ctx.constants
        grad_TD = grad_TD.contiguous()
        tokens, head_width = len(qkv_TC), qkv_TC.shape[1] // (3 * num_heads)
        threshold, scale = threshold_and_scale(dropout)
        delta_NR, dqkv_TC = torch.empty_like(lse_NR), torch.empty_like(qkv_TC)
        numbers = (tokens, lse_NR.shape[1], cu_seqlens.numel() - 1, num_heads)
        scales = (LOG2_E / math.sqrt(head_width), scale / math.sqrt(head_width), threshold)
        # The pass by queries writes delta, which the pass by keys reads.
        rotary_attention_backward_queries[(_tiles_of(tokens, cu_seqlens, tiles.queries.rows) * num_heads,)](
            *(qkv_TC, turns_S2E, out_TD, grad_TD, cu_seqlens, *seeds_and_constants(dropout)),
            *(lse_NR, delta_NR, dqkv_TC, *numbers, *scales, 1.0 / scale),
            **constants,
            **launch_options(tiles.queries, head_width),
        )
        rotary_attention_backward_keys[(_tiles_of(tokens, cu_seqlens, tiles.keys.columns) * num_heads,)](
            *(qkv_TC, turns_S2E, grad_TD, cu_seqlens, *seeds_and_constants(dropout)),
            *(lse_NR, delta_NR, dqkv_TC, *numbers, *scales, scale),
            PADDING=tiles.forward.rows,
            **constants,
            **launch_options(tiles.keys, head_width),
        )
        return dqkv_TC, None, None, None, None


def _turned(qkv_TC: Tensor, turns_S2E: Tensor, cu_seqlens: Tensor, num_heads: int) -> Tensor:
    """Return a copy with queries and keys turned; tokens of no sequence do not matter."""
    rows, head_width = 64, qkv_TC.shape[1] // (3 * num_heads)
    turned_TC = torch.empty_like(qkv_TC)
    rotary_turn[(_tiles_of(len(qkv_TC), cu_seqlens, rows) * 3 * num_heads,)](
        *(qkv_TC, turns_S2E, cu_seqlens, turned_TC),
        *(len(qkv_TC), cu_seqlens.numel() - 1, num_heads),
        HEAD=head_width,
        BLOCK_E=power_of_two(head_width // 2),
        ROWS=rows,
        num_warps=4,
    )
    return turned_TC


def _tiles_of(tokens: int, cu_seqlens: Tensor, tile: int) -> int:
    """Return how many tiles a packed row has, one more for each sequence and for the padding (``kernels.tile_of``)."""
    return tokens // tile + cu_seqlens.numel()
