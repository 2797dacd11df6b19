"""Triton kernels of ``attention`` over packed sequences; probabilities never reach memory.

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

# T packed tokens, N heads, H head width, D = N * H, K key tiles

import triton
import triton.language as tl

from megabert.ops.triton_support.dropout_hash import is_kept
from megabert.ops.triton_support.fast_math import exp2


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
