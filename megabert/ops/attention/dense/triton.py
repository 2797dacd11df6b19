"""``attention`` on Triton kernels: launches, and the tensors kept between the passes; ``kernels.py`` derives them."""

# T packed tokens, B sequences, N heads, H head width, D = N * H, C = 3 * D, K key tiles, Q quantities,
# R rows of ``lse`` and ``delta``: T and room after each sequence

import math
from typing import Any

import torch
import triton
from torch import Tensor

from megabert.ops.attention.dense.backward_kernels import attention_backward, attention_delta, attention_sum_tiles
from megabert.ops.attention.dense.cpu import DenseSequences
from megabert.ops.attention.dense.kernels import attention_forward
from megabert.ops.dropout import AttentionDropout, Heads, threshold_and_scale
from megabert.ops.triton_support.column_sums import column_sums
from megabert.ops.triton_support.input_checks import require_heads
from megabert.ops.triton_support.tile_sizes import (
    LONGEST_IN_PARTS,
    Tiles,
    attention_tiles,
    capability_of,
    fills_card,
    power_of_two,
)

LOG2_E = 1.4426950408889634  # the kernels compute exp(x) as exp2(x * log2(e))


def attention_triton(qkv_TC: Tensor, sequences: DenseSequences, heads: Heads, bias_C: Tensor | None = None) -> Tensor:
    """Run ``api.attention`` on a CUDA device; products of 16-bit numbers, sums and softmax in float32."""
    require_heads(qkv_TC, heads.num_heads)
    return _Attention.apply(qkv_TC, bias_C, sequences, heads)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv_TC: Tensor, bias_C: Tensor | None, packed: DenseSequences, heads: Heads) -> Tensor:
        (num_heads, dropout), cu_seqlens, max_seqlen = heads, packed.cu_seqlens, packed.max_seqlen
        qkv_TC = qkv_TC.contiguous()
        tokens, head_width = qkv_TC.shape[0], qkv_TC.shape[1] // (3 * num_heads)
        tiles = attention_tiles(
            capability_of(qkv_TC.device), head_width=head_width, max_seqlen=max_seqlen, itemsize=qkv_TC.itemsize
        )
        blocks = max(1, triton.cdiv(max_seqlen, tiles.forward.rows))
        sequences = cu_seqlens.numel() - 1
        out_TD = torch.empty(tokens, num_heads * head_width, dtype=qkv_TC.dtype, device=qkv_TC.device)
        queries = tokens // 16 * 16 + sequences * (tiles.forward.rows + 16)  # as `first_query` lays them out
        lse_NR = out_TD.new_empty(num_heads, queries, dtype=torch.float32)
        attention_forward[((sequences + 1) * blocks * num_heads,)](
            *(qkv_TC, cu_seqlens, *seeds_and_constants(dropout), out_TD, lse_NR),
            *(tokens, queries, sequences, num_heads, blocks),
            *(LOG2_E / math.sqrt(head_width), *threshold_and_scale(dropout)),
            **launch_options(tiles.forward, head_width),
        )
        # Where a program holds all keys of a head, delta needs no output.
        ctx.save_for_backward(qkv_TC, cu_seqlens, lse_NR, None if tiles.is_whole else out_TD)
        ctx.constants = (max_seqlen, num_heads, dropout, tiles)
        ctx.bias_dtype = qkv_TC.dtype if bias_C is None else bias_C.dtype
        return out_TD

    @staticmethod
    def backward(ctx: Any, grad_TD: Tensor) -> tuple[Tensor | None, ...]:
        qkv_TC, cu_seqlens, lse_NR, out_TD = ctx.saved_tensors
        max_seqlen, num_heads, dropout, tiles = ctx.constants
        grad_TD = grad_TD.contiguous()
        tokens, width = grad_TD.shape
        head_width, sequences = width // num_heads, cu_seqlens.numel() - 1
        threshold, scale = threshold_and_scale(dropout)
        is_full = tiles.may_run and fills_card(sequences * num_heads, qkv_TC.device)
        is_running = is_full or max_seqlen > LONGEST_IN_PARTS
        key_tiles = 1 if is_running else max(1, triton.cdiv(max_seqlen, tiles.backward.columns))
        dqkv_TC = torch.empty_like(qkv_TC)
        memory_adds = is_running and capability_of(qkv_TC.device) >= (9, 0)
        biases_QBD = None
        if ctx.needs_input_grad[1] and (tiles.is_whole or memory_adds):
            quantities = 3 if memory_adds else 2
            biases_QBD = torch.zeros(quantities, sequences, width, dtype=torch.float32, device=qkv_TC.device)
        # If keys are tiled, another kernel writes delta first. If each tile has its program, another kernel adds up the
        # parts of dQ afterwards. An unused pointer must still be a tensor, because the kernel adds offsets to it.
        delta_NR = sums_KTD = lse_NR
        if not tiles.is_whole:
            delta_NR = torch.empty_like(lse_NR)
            room = tiles.forward.rows
            write_delta(delta_NR, out_TD, grad_TD, cu_seqlens, max_seqlen=max_seqlen, rows=room, scale=scale)
            sums_KTD = torch.empty(key_tiles, tokens, width, dtype=torch.float32, device=qkv_TC.device)
        attention_backward[((sequences + 1) * key_tiles * num_heads,)](
            *(qkv_TC, grad_TD, cu_seqlens, *seeds_and_constants(dropout)),
            *(lse_NR, delta_NR, dqkv_TC, sums_KTD, biases_QBD),
            *(tokens, sequences, num_heads, lse_NR.shape[1], key_tiles),
            *(LOG2_E / math.sqrt(head_width), scale / math.sqrt(head_width), threshold, scale),
            IS_WHOLE=tiles.is_whole,
            IS_RUNNING=is_running,
            MEMORY_ADDS=memory_adds,
            LOADS_AHEAD=tiles.backward.stages > 1,
            PADDING=tiles.forward.rows,
            **launch_options(tiles.backward, head_width),
        )
        if not tiles.is_whole and not is_running:
            tile, factor = tiles.backward.columns, scale / math.sqrt(head_width)
            _add_up_tiles(sums_KTD, cu_seqlens, dqkv_TC, max_seqlen=max_seqlen, tile=tile, scale=factor)
        dbias_C = _bias_gradient(dqkv_TC, biases_QBD, ctx.bias_dtype) if ctx.needs_input_grad[1] else None
        return dqkv_TC, dbias_C, None, None


def _bias_gradient(dqkv_TC: Tensor, biases_QBD: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return the sum of ``dqkv_TC`` over tokens, from the sums of programs for keys and values or for all, if given."""
    if biases_QBD is None:
        return dqkv_TC.sum(0, dtype=dtype)
    quantities, _, width = biases_QBD.shape
    dbias_3D = torch.empty(3, width, dtype=dtype, device=dqkv_TC.device)
    if quantities == 2:
        torch.sum(dqkv_TC[:, :width], 0, dtype=dtype, out=dbias_3D[0])
    column_sums(biases_QBD, dtype, out=dbias_3D[3 - quantities :])
    return dbias_3D.view(-1)


def launch_options(tiles: Tiles, head_width: int) -> dict[str, int]:
    """Return the constants of a launch that follow from its tiles and the width of a head."""
    heads = {"HEAD": head_width, "BLOCK_H": max(16, power_of_two(head_width))}  # tl.dot takes 16 at least
    return {**heads, **tiles.options, "num_stages": tiles.stages}


def seeds_and_constants(dropout: AttentionDropout | None) -> tuple[Tensor | None, Tensor | None]:
    """Return the numbers that make the key of a sequence and head."""
    return (None, None) if dropout is None else (dropout.seeds_B, dropout.constants_N)


def write_delta(
    delta_NR: Tensor, out_TD: Tensor, grad_TD: Tensor, cu_seqlens: Tensor, *, max_seqlen: int, rows: int, scale: float
) -> None:
    """Write rowsum(dO * O) / scale for the backward pass in key tiles; every sequence has room for ``rows`` more."""
    (heads, queries), (tokens, width) = delta_NR.shape, out_TD.shape
    sequences, blocks = cu_seqlens.numel() - 1, max(1, triton.cdiv(max_seqlen, rows))
    attention_delta[(sequences * blocks * heads,)](
        *(out_TD, grad_TD, cu_seqlens, delta_NR, tokens, sequences, heads, blocks, queries, 1.0 / scale),
        HEAD=width // heads,
        BLOCK_H=power_of_two(width // heads),
        ROWS=rows,
        num_warps=16 if width // heads > 64 else 4,
    )


def _add_up_tiles(
    parts_KTD: Tensor, cu_seqlens: Tensor, dqkv_TC: Tensor, *, max_seqlen: int, tile: int, scale: float
) -> None:
    """Write the gradient of the queries from its parts, one for each tile of keys."""
    _, tokens, width = parts_KTD.shape
    tiles = Tiles(16, min(128, power_of_two(width)), warps=4)
    blocks = triton.cdiv(max_seqlen, tiles.rows)
    attention_sum_tiles[((cu_seqlens.numel() - 1) * blocks, triton.cdiv(width, tiles.columns))](
        parts_KTD, cu_seqlens, dqkv_TC, tokens, width, blocks, scale, TILE=tile, **tiles.options
    )
