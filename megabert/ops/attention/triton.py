"""``attention`` as Triton kernels over packed sequences; probabilities never reach memory.

Forward (Dao 2023, FlashAttention-2): a program owns ROWS queries of one head and walks over keys with a running
maximum; it keeps the base-2 logarithm of each softmax's denominator. A dropped probability stays in the denominator.

Backward: with P = exp2(S - lse), A = keep * P, dP = keep * (dO V^T), c = dropout scale, everything transposed (keys by
queries) so that two of five products take their left side from registers:
dV = c A^T dO, dS = P * (dP - delta), dQ = c dS K / sqrt(H), dK = c dS^T Q / sqrt(H), delta = rowsum(P * dP).
Up to a length in the table a program holds all keys of a head, so delta and dQ are complete in it. Beyond, a program
holds COLUMNS keys, delta = rowsum(dO * O) / c comes from a kernel before, and each tile's part of dQ goes to float32
scratch that a kernel after adds up in order of tiles: no atomics.

Tokens past the last sequence form one more "sequence" whose programs write zeros.
"""

# T packed tokens, B sequences, N heads, H head width, D = N * H, C = 3 * D, K key tiles

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from megabert.errors import KernelError
from megabert.ops.dropout import Dropout
from megabert.ops.fast_math import exp2
from megabert.ops.kept import is_kept
from megabert.ops.supported import require
from megabert.ops.tiles import AttentionTiles, attention_tiles, capability_of, power_of_two

WIDEST_HEAD = 128
LOG2_E = 1.4426950408889634


@triton.jit
def _bounds(cu_seqlens, sequence, sequences, tokens):
    start = tl.load(cu_seqlens + sequence)
    end = tl.load(cu_seqlens + sequence + 1, mask=sequence < sequences, other=0)
    return start, tl.where(sequence < sequences, end, tokens) - start


@triton.jit
def _write_zeros(
    out, start, length, first, step, stride, HEAD: tl.constexpr, BLOCK_H: tl.constexpr, ROWS: tl.constexpr
):
    h = tl.arange(0, BLOCK_H)
    for begin in range(first, length, step):
        row = begin + tl.arange(0, ROWS)
        place = (start + row).to(tl.int64)[:, None] * stride + h[None, :]
        zeros = tl.zeros((ROWS, BLOCK_H), dtype=out.dtype.element_ty)
        tl.store(out + place, zeros, mask=(row < length)[:, None] & (h < HEAD)[None, :])


@triton.jit
def attention_forward(
    qkv,
    cu_seqlens,
    row_keys,
    out,
    lse,
    tokens,
    sequences,
    heads,
    blocks,
    score_scale,
    threshold,
    dropout_scale,
    HAS_DROPOUT: tl.constexpr,
    HEAD: tl.constexpr,
    BLOCK_H: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Attend ROWS queries of one head; ``lse`` is float32 of shape (N, T), ``score_scale`` has log2(e) in it."""
    block = tl.program_id(0) % blocks
    sequence = tl.program_id(0) // blocks
    head = tl.program_id(1)
    width = heads * HEAD
    start, length = _bounds(cu_seqlens, sequence, sequences, tokens)
    out += head * HEAD
    if sequence == sequences:
        _write_zeros(out, start, length, block * ROWS, blocks * ROWS, width, HEAD, BLOCK_H, ROWS)
        return
    if block * ROWS >= length:
        return
    h = tl.arange(0, BLOCK_H)
    row = block * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    qkv += start.to(tl.int64) * 3 * width + head * HEAD
    is_row = (row < length)[:, None] & (h < HEAD)[None, :]
    q = tl.load(qkv + row[:, None] * 3 * width + h[None, :], mask=is_row, other=0.0)
    key = row
    if HAS_DROPOUT:
        key = tl.load(row_keys + (start + row).to(tl.int64) * heads + head, mask=row < length, other=0)
    highest = tl.full((ROWS,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((ROWS,), dtype=tl.float32)
    context = tl.zeros((ROWS, BLOCK_H), dtype=tl.float32)
    for first in range(0, length, COLUMNS):
        place = (first + column)[:, None] * 3 * width + h[None, :]
        is_column = (first + column < length)[:, None] & (h < HEAD)[None, :]
        k = tl.load(qkv + width + place, mask=is_column, other=0.0)
        v = tl.load(qkv + 2 * width + place, mask=is_column, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * score_scale
        scores = tl.where((first + column < length)[None, :], scores, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, axis=1))
        shrink = exp2(highest - higher)
        p = exp2(scores - higher[:, None])
        total = total * shrink + tl.sum(p, axis=1)
        if HAS_DROPOUT:
            p = tl.where(is_kept(key[:, None], (first + column)[None, :], threshold), p, 0.0)
        context = tl.dot(p.to(v.dtype), v, context * shrink[:, None], input_precision="ieee")
        highest = higher
    context *= (dropout_scale / total)[:, None]
    place = (start + row).to(tl.int64)[:, None] * width + h[None, :]
    tl.store(out + place, context.to(out.dtype.element_ty), mask=is_row)
    tl.store(lse + head.to(tl.int64) * tokens + start + row, highest + tl.log2(total), mask=row < length)


@triton.jit
def attention_delta(
    out, dout, delta, tokens, heads, inverse_scale, HEAD: tl.constexpr, BLOCK_H: tl.constexpr, ROWS: tl.constexpr
):
    """Write rowsum(dO * O) * inverse_scale of ROWS tokens of one head to ``delta``, float32 of shape (N, T)."""
    head = tl.program_id(1)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    h = tl.arange(0, BLOCK_H)
    inside = (row < tokens)[:, None] & (h < HEAD)[None, :]
    place = (row.to(tl.int64) * heads + head)[:, None] * HEAD + h[None, :]
    o = tl.load(out + place, mask=inside, other=0.0).to(tl.float32)
    do = tl.load(dout + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(delta + head.to(tl.int64) * tokens + row, tl.sum(o * do, axis=1) * inverse_scale, mask=row < tokens)


@triton.jit
def attention_backward(
    qkv,
    dout,
    cu_seqlens,
    row_keys,
    lse,
    delta,
    dqkv,
    partials,
    tokens,
    sequences,
    heads,
    tiles,
    score_scale,
    gradient_scale,
    threshold,
    dropout_scale,
    HAS_DROPOUT: tl.constexpr,
    IS_WHOLE: tl.constexpr,
    HEAD: tl.constexpr,
    BLOCK_H: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Differentiate by COLUMNS keys and values of one head; ``partials`` is float32 of shape (K, T, D)."""
    tile = tl.program_id(0) % tiles
    sequence = tl.program_id(0) // tiles
    head = tl.program_id(1)
    width = heads * HEAD
    start, length = _bounds(cu_seqlens, sequence, sequences, tokens)
    dqkv += head * HEAD
    if sequence == sequences:
        _write_zeros(dqkv, start, length, tile * ROWS, tiles * ROWS, 3 * width, HEAD, BLOCK_H, ROWS)
        _write_zeros(dqkv + width, start, length, tile * ROWS, tiles * ROWS, 3 * width, HEAD, BLOCK_H, ROWS)
        _write_zeros(dqkv + 2 * width, start, length, tile * ROWS, tiles * ROWS, 3 * width, HEAD, BLOCK_H, ROWS)
        return
    if tile * COLUMNS >= length:
        return
    h = tl.arange(0, BLOCK_H)
    column = tile * COLUMNS + tl.arange(0, COLUMNS)
    qkv += start.to(tl.int64) * 3 * width + head * HEAD
    dqkv += start.to(tl.int64) * 3 * width
    dout += start.to(tl.int64) * width + head * HEAD
    lse += head.to(tl.int64) * tokens + start
    delta += head.to(tl.int64) * tokens + start
    row_keys += start.to(tl.int64) * heads + head
    column_place = column[:, None] * 3 * width + h[None, :]
    is_column = (column < length)[:, None] & (h < HEAD)[None, :]
    k = tl.load(qkv + width + column_place, mask=is_column, other=0.0)
    v = tl.load(qkv + 2 * width + column_place, mask=is_column, other=0.0)
    dk = tl.zeros((COLUMNS, BLOCK_H), dtype=tl.float32)
    dv = tl.zeros((COLUMNS, BLOCK_H), dtype=tl.float32)
    for first in range(0, length, ROWS):
        row = first + tl.arange(0, ROWS)
        is_row = (row < length)[:, None] & (h < HEAD)[None, :]
        q = tl.load(qkv + row[:, None] * 3 * width + h[None, :], mask=is_row, other=0.0)
        do = tl.load(dout + row[:, None] * width + h[None, :], mask=is_row, other=0.0)
        log_total = tl.load(lse + row, mask=row < length, other=0.0)
        p = exp2(tl.dot(k, tl.trans(q), input_precision="ieee") * score_scale - log_total[None, :])
        # rows past the end need no mask: their q and dO are zero
        p = tl.where((column < length)[:, None], p, 0.0)
        dp = tl.dot(v, tl.trans(do), input_precision="ieee")
        a = p
        if HAS_DROPOUT:
            key = tl.load(row_keys + row * heads, mask=row < length, other=0)
            keep = is_kept(key[None, :], column[:, None], threshold)
            a = tl.where(keep, p, 0.0)
            dp = tl.where(keep, dp, 0.0)
        dv = tl.dot(a.to(do.dtype), do, dv, input_precision="ieee")
        d = tl.sum(p * dp, axis=0) if IS_WHOLE else tl.load(delta + row, mask=row < length, other=0.0)
        ds = (p * (dp - d[None, :])).to(q.dtype)
        dk = tl.dot(ds, q, dk, input_precision="ieee")
        dq = tl.dot(tl.trans(ds), k, input_precision="ieee") * gradient_scale
        # keys of one tile: this dQ is complete
        if IS_WHOLE or length <= COLUMNS:
            tl.store(dqkv + row[:, None] * 3 * width + h[None, :], dq.to(dqkv.dtype.element_ty), mask=is_row)
        else:
            place = (tile.to(tl.int64) * tokens + start + row)[:, None] * width + head * HEAD + h[None, :]
            tl.store(partials + place, dq, mask=is_row)
    tl.store(dqkv + width + column_place, (dk * gradient_scale).to(dqkv.dtype.element_ty), mask=is_column)
    tl.store(dqkv + 2 * width + column_place, (dv * dropout_scale).to(dqkv.dtype.element_ty), mask=is_column)


@triton.jit
def attention_sum_tiles(
    partials,
    cu_seqlens,
    dqkv,
    tokens,
    width,
    blocks,
    TILE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Add up the parts of dQ of one sequence, ROWS tokens of COLUMNS columns, in order of key tiles."""
    block = tl.program_id(0) % blocks
    sequence = tl.program_id(0) // blocks
    start = tl.load(cu_seqlens + sequence)
    length = tl.load(cu_seqlens + sequence + 1) - start
    if (block * ROWS >= length) | (length <= TILE):
        return
    row = block * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < length)[:, None] & (column < width)[None, :]
    place = (start + row).to(tl.int64)[:, None] * width + column[None, :]
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for tile in range(0, (length + TILE - 1) // TILE):
        total += tl.load(partials + tl.cast(tile, tl.int64) * tokens * width + place, mask=inside, other=0.0)
    target = (start + row).to(tl.int64)[:, None] * 3 * width + column[None, :]
    tl.store(dqkv + target, total.to(dqkv.dtype.element_ty), mask=inside)


def attention_triton(
    qkv_TC: Tensor,
    cu_seqlens: Tensor,
    *,
    max_seqlen: int,
    num_heads: int,
    dropout: Dropout | None = None,
    plan: None = None,
) -> Tensor:
    """Run ``api.attention`` on a CUDA device; products of 16-bit numbers, sums and softmax in float32."""
    require("attention", qkv_TC)
    head_width = qkv_TC.shape[1] // (3 * num_heads)
    if head_width > WIDEST_HEAD:
        raise KernelError(
            f"ops.attention=triton: heads are {head_width} wide; its kernels take up to {WIDEST_HEAD}. "
            "Use ops.attention=torch or more heads."
        )
    out_TD: Tensor = _Attention.apply(qkv_TC, cu_seqlens, max_seqlen, num_heads, dropout)
    return out_TD


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, qkv_TC: Tensor, cu_seqlens: Tensor, max_seqlen: int, num_heads: int, dropout: Dropout | None
    ) -> Tensor:
        qkv_TC = qkv_TC.contiguous()
        tokens, head_width = qkv_TC.shape[0], qkv_TC.shape[1] // (3 * num_heads)
        tiles = attention_tiles(
            capability_of(qkv_TC.device), head_width=head_width, max_seqlen=max_seqlen, itemsize=qkv_TC.itemsize
        )
        out_TD = torch.empty(tokens, num_heads * head_width, dtype=qkv_TC.dtype, device=qkv_TC.device)
        lse_NT = torch.empty(num_heads, tokens, dtype=torch.float32, device=qkv_TC.device)
        blocks = max(1, triton.cdiv(max_seqlen, tiles.forward.rows))
        sequences = cu_seqlens.numel() - 1
        attention_forward[((sequences + 1) * blocks, num_heads)](
            qkv_TC,
            cu_seqlens,
            None if dropout is None else dropout.row_keys,
            out_TD,
            lse_NT,
            tokens,
            sequences,
            num_heads,
            blocks,
            LOG2_E / math.sqrt(head_width),
            0 if dropout is None else dropout.threshold,
            1.0 if dropout is None else dropout.scale,
            HAS_DROPOUT=dropout is not None,
            HEAD=head_width,
            BLOCK_H=max(16, power_of_two(head_width)),
            ROWS=tiles.forward.rows,
            COLUMNS=tiles.forward.columns,
            num_warps=tiles.forward.warps,
            num_stages=tiles.forward.stages,
        )
        ctx.save_for_backward(qkv_TC, cu_seqlens, lse_NT, None if tiles.is_whole else out_TD)
        ctx.constants = (max_seqlen, num_heads, dropout, tiles)
        return out_TD

    @staticmethod
    def backward(ctx: Any, grad_TD: Tensor) -> tuple[Tensor | None, ...]:
        qkv_TC, cu_seqlens, lse_NT, out_TD = ctx.saved_tensors
        max_seqlen, num_heads, dropout, tiles = ctx.constants
        grad_TD = grad_TD.contiguous()
        scale = 1.0 if dropout is None else dropout.scale
        delta_NT = None if out_TD is None else _delta(out_TD, grad_TD, num_heads, scale)
        dqkv_TC = _gradient(
            (qkv_TC, grad_TD, cu_seqlens, lse_NT, delta_NT), max_seqlen, num_heads, dropout=dropout, tiles=tiles
        )
        return dqkv_TC, None, None, None, None


def _delta(out_TD: Tensor, grad_TD: Tensor, num_heads: int, scale: float) -> Tensor:
    tokens, head_width = out_TD.shape[0], out_TD.shape[1] // num_heads
    delta_NT = torch.empty(num_heads, tokens, dtype=torch.float32, device=out_TD.device)
    rows = 64
    attention_delta[(triton.cdiv(tokens, rows), num_heads)](
        out_TD,
        grad_TD,
        delta_NT,
        tokens,
        num_heads,
        1.0 / scale,
        HEAD=head_width,
        BLOCK_H=power_of_two(head_width),
        ROWS=rows,
        num_warps=4,
    )
    return delta_NT


def _gradient(
    tensors: tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None],
    max_seqlen: int,
    num_heads: int,
    *,
    dropout: Dropout | None,
    tiles: AttentionTiles,
) -> Tensor:
    qkv_TC, grad_TD, cu_seqlens, lse_NT, delta_NT = tensors
    tokens, width = grad_TD.shape
    head_width, sequences = width // num_heads, cu_seqlens.numel() - 1
    scale = 1.0 if dropout is None else dropout.scale
    key_tiles = max(1, triton.cdiv(max_seqlen, tiles.backward.columns))
    dqkv_TC = torch.empty_like(qkv_TC)
    partials_KTD = None
    if not tiles.is_whole:
        partials_KTD = torch.empty(key_tiles, tokens, width, dtype=torch.float32, device=qkv_TC.device)
    attention_backward[((sequences + 1) * key_tiles, num_heads)](
        qkv_TC,
        grad_TD,
        cu_seqlens,
        # a pointer that is moved but not read where there is no dropout, or no scratch
        lse_NT if dropout is None else dropout.row_keys,
        lse_NT,
        lse_NT if delta_NT is None else delta_NT,
        dqkv_TC,
        partials_KTD,
        tokens,
        sequences,
        num_heads,
        key_tiles,
        LOG2_E / math.sqrt(head_width),
        scale / math.sqrt(head_width),
        0 if dropout is None else dropout.threshold,
        scale,
        HAS_DROPOUT=dropout is not None,
        IS_WHOLE=tiles.is_whole,
        HEAD=head_width,
        BLOCK_H=max(16, power_of_two(head_width)),
        ROWS=tiles.backward.rows,
        COLUMNS=tiles.backward.columns,
        num_warps=tiles.backward.warps,
        num_stages=tiles.backward.stages,
    )
    if partials_KTD is not None:
        rows, columns = 16, min(128, power_of_two(width))
        blocks = triton.cdiv(max_seqlen, rows)
        attention_sum_tiles[(sequences * blocks, triton.cdiv(width, columns))](
            partials_KTD,
            cu_seqlens,
            dqkv_TC,
            tokens,
            width,
            blocks,
            TILE=tiles.backward.columns,
            ROWS=rows,
            COLUMNS=columns,
            num_warps=4,
        )
    return dqkv_TC
