"""Triton kernels of ``attention`` over packed sequences; probabilities never reach memory.

Forward (Dao 2023, FlashAttention-2): a program owns ROWS queries of one head and walks over keys with a running
maximum; it keeps the base-2 logarithm of each softmax's denominator (lse). A dropped probability stays in the
denominator.

Backward: with P = exp2(S - lse), A = keep * P, dP = keep * (dO V^T), c = dropout scale, everything transposed (keys by
queries) so that two of five products take their left side from registers:

    dV = c A^T dO, dS = P * (dP - delta), dQ = c dS K / sqrt(H), dK = c dS^T Q / sqrt(H), delta = rowsum(P * dP)

Up to a length in the table of tile sizes a program holds all keys of a head (IS_WHOLE), so delta and dQ are complete in
it. Beyond, a program holds COLUMNS keys; delta = rowsum(dO * O) / c comes from a kernel before, and each tile's part of
dQ goes to float32 scratch that a kernel after adds up in the order of tiles: no atomics, so results repeat.

S = Q K^T / sqrt(H) is multiplied by log2(e), because a GPU has an instruction for 2^x and none for e^x.
Programs are launched for the longest sequence; those past the end of a shorter one return at once. Tokens past the last
sequence form one more "sequence" whose programs write zeros.

Numbers a query (lse, delta) have buffers of their own layout, in which every sequence begins at a multiple of 16 and
has room for a tile behind its end: whole tiles are written and read there without masks, which cost 6 of 34
instructions an element of the scores. Behind a sequence's end lse is +inf, so that P = exp2(S - lse) is 0 there.
"""

# T packed tokens, N heads, H head width, D = N * H, K key tiles

import triton
import triton.language as tl

from megabert.ops.triton_support.device_functions import GOLDEN, are_pairs_kept, exp2, lowbias32


@triton.jit
def _bounds(
    cu_seqlens_ptr,  # where each sequence starts, int32, (sequences + 1,)
    sequence,  # which one; ``sequences`` is the padding behind the last
    sequences,  # how many there are
    tokens,  # T, padding included
):
    """Return the first token of a sequence and its length."""
    start = tl.load(cu_seqlens_ptr + sequence)
    end = tl.load(cu_seqlens_ptr + sequence + 1, mask=sequence < sequences, other=0)
    return start, tl.where(sequence < sequences, end, tokens) - start


@triton.jit
def _first_query(start, sequence, PADDING: tl.constexpr):
    """Return where a sequence that begins at token ``start`` begins in ``lse`` and ``delta``, a multiple of 16."""
    return start // 16 * 16 + sequence * (PADDING + 16)


@triton.jit
def _dropout_keys(
    seeds_ptr,  # seed of each sequence, int32, (sequences,)
    constants_ptr,  # constant of each head at this site, int32, (heads,)
    sequence,  # which sequence
    head,  # which head
):
    """Return the key of a sequence and head, and the second one that follows from it."""
    key = lowbias32((tl.load(seeds_ptr + sequence) ^ tl.load(constants_ptr + head)).to(tl.uint32, bitcast=True))
    return key, lowbias32(key + GOLDEN)


@triton.jit
def _write_zeros(
    out_ptr,  # one head of a tensor of rows
    start,  # first row of the padding
    length,  # rows of the padding
    first,  # first of them that this program writes
    step,  # rows until its next block
    stride,  # elements from one row to the next
    HEAD: tl.constexpr,  # H
    BLOCK_H: tl.constexpr,  # H, rounded up to a power of two
    ROWS: tl.constexpr,  # rows of a block
):
    """Write zeros to this program's share of the tokens that belong to no sequence."""
    h = tl.arange(0, BLOCK_H)
    for begin in range(first, length, step):
        row = begin + tl.arange(0, ROWS)
        offsets = (start + row).to(tl.int64)[:, None] * stride + h[None, :]
        zeros = tl.zeros((ROWS, BLOCK_H), dtype=out_ptr.dtype.element_ty)
        tl.store(out_ptr + offsets, zeros, mask=(row < length)[:, None] & (h < HEAD)[None, :])


@triton.jit
def attention_forward(
    qkv_ptr,  # queries, keys and values, (tokens, 3, heads, HEAD)
    cu_seqlens_ptr,  # where each sequence starts, int32, (sequences + 1,)
    seeds_ptr,  # dropout's seed of each sequence, int32, (sequences,), or None
    constants_ptr,  # dropout's constant of each head, int32, (heads,), or None
    out_ptr,  # contexts, (tokens, heads, HEAD)
    lse_ptr,  # log2 of the softmax's denominator, float32, (heads, queries), for the backward pass
    tokens,  # T, padding included
    queries,  # numbers a query from one head to the next
    sequences,  # B
    heads,  # N
    blocks,  # blocks of ROWS queries in the longest sequence
    score_scale,  # log2(e) / sqrt(H)
    threshold,  # smallest hash that survives dropout, int32
    dropout_scale,  # what a survivor of dropout is multiplied by
    HAS_DROPOUT: tl.constexpr,
    HEAD: tl.constexpr,  # H
    BLOCK_H: tl.constexpr,  # H, rounded up to a power of two
    ROWS: tl.constexpr,  # queries of a program
    COLUMNS: tl.constexpr,  # keys read at once
):
    """Attend with ROWS queries of one head to all keys of their sequence."""
    # Which queries of which sequence: programs are numbered sequence by sequence.
    block = tl.program_id(0) % blocks
    sequence = tl.program_id(0) // blocks
    head = tl.program_id(1)
    width = heads * HEAD
    start, length = _bounds(cu_seqlens_ptr, sequence, sequences, tokens)
    out_ptr += head * HEAD
    if sequence == sequences:
        _write_zeros(out_ptr, start, length, block * ROWS, blocks * ROWS, width, HEAD, BLOCK_H, ROWS)
        return
    if block * ROWS >= length:
        return

    # The queries are loaded once.
    h = tl.arange(0, BLOCK_H)
    rows = tl.arange(0, ROWS)
    row = block * ROWS + rows
    cols = tl.arange(0, COLUMNS)
    qkv_ptr += start.to(tl.int64) * 3 * width + head * HEAD
    row_mask = (row < length)[:, None] & (h < HEAD)[None, :]
    q = tl.load(qkv_ptr + row[:, None] * 3 * width + h[None, :], mask=row_mask, other=0.0)
    if HAS_DROPOUT:
        key, second_key = _dropout_keys(seeds_ptr, constants_ptr, sequence, head)

    # Walk over the keys. ``highest`` is the largest score so far, ``total`` the sum of 2^(score - highest), ``context``
    # the values weighed by it; when the maximum rises, both sums shrink to the new one.
    highest = tl.full((ROWS,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((ROWS,), dtype=tl.float32)
    context = tl.zeros((ROWS, BLOCK_H), dtype=tl.float32)
    for first in range(0, length, COLUMNS):
        offsets = (first + cols)[:, None] * 3 * width + h[None, :]
        col_mask = (first + cols < length)[:, None] & (h < HEAD)[None, :]
        k = tl.load(qkv_ptr + width + offsets, mask=col_mask, other=0.0)
        v = tl.load(qkv_ptr + 2 * width + offsets, mask=col_mask, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * score_scale
        scores = tl.where((first + cols < length)[None, :], scores, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, axis=1))
        shrink = exp2(highest - higher)
        p = exp2(scores - higher[:, None])
        total = total * shrink + tl.sum(p, axis=1)
        # Dropped after the sum: a dropped probability stays in the denominator.
        if HAS_DROPOUT:
            keep = are_pairs_kept(key, second_key, block * ROWS, rows[:, None], first, cols[None, :], threshold)
            p = tl.where(keep, p, 0.0)
        context = tl.dot(p.to(v.dtype), v, context * shrink[:, None], input_precision="ieee")
        highest = higher

    # Divide by the denominator, and keep its logarithm.
    context *= (dropout_scale / total)[:, None]
    offsets = (start + row).to(tl.int64)[:, None] * width + h[None, :]
    tl.store(out_ptr + offsets, context.to(out_ptr.dtype.element_ty), mask=row_mask)
    lse = tl.where(row < length, highest + tl.log2(total), float("inf"))
    tl.store(lse_ptr + head.to(tl.int64) * queries + _first_query(start, sequence, ROWS) + row, lse)


@triton.jit
def attention_delta(
    out_ptr,  # contexts, (tokens, heads, HEAD)
    dout_ptr,  # their gradient, (tokens, heads, HEAD)
    cu_seqlens_ptr,  # where each sequence starts, int32, (sequences + 1,)
    delta_ptr,  # result, float32, (heads, queries)
    tokens,  # T, padding included
    sequences,  # B
    heads,  # N
    blocks,  # blocks of ROWS queries in the longest sequence
    queries,  # numbers a query from one head to the next
    inverse_scale,  # 1 / dropout scale
    HEAD: tl.constexpr,  # H
    BLOCK_H: tl.constexpr,  # H, rounded up to a power of two
    ROWS: tl.constexpr,  # queries of a program, the padding of a sequence
):
    """Write delta = rowsum(dO * O) / c of ROWS queries of one head, for the backward pass in key tiles."""
    block = tl.program_id(0) % blocks
    sequence = tl.program_id(0) // blocks
    head = tl.program_id(1)
    start, length = _bounds(cu_seqlens_ptr, sequence, sequences, tokens)
    if block * ROWS >= length:
        return
    row = block * ROWS + tl.arange(0, ROWS)
    h = tl.arange(0, BLOCK_H)
    mask = (row < length)[:, None] & (h < HEAD)[None, :]
    offsets = ((start + row).to(tl.int64)[:, None] * heads + head) * HEAD + h[None, :]
    o = tl.load(out_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    do = tl.load(dout_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    delta = tl.sum(o * do, axis=1) * inverse_scale
    tl.store(delta_ptr + head.to(tl.int64) * queries + _first_query(start, sequence, ROWS) + row, delta)


@triton.jit
def attention_backward(
    qkv_ptr,  # queries, keys and values, (tokens, 3, heads, HEAD)
    dout_ptr,  # gradient of the contexts, (tokens, heads, HEAD)
    cu_seqlens_ptr,  # where each sequence starts, int32, (sequences + 1,)
    seeds_ptr,  # dropout's seed of each sequence, int32, (sequences,), or None
    constants_ptr,  # dropout's constant of each head, int32, (heads,), or None
    lse_ptr,  # log2 of the softmax's denominator, float32, (heads, queries)
    delta_ptr,  # rowsum(P * dP), float32, (heads, queries); not read if IS_WHOLE
    dqkv_ptr,  # gradients of queries, keys and values, (tokens, 3, heads, HEAD)
    partials_ptr,  # each key tile's part of dQ, float32, (tiles, tokens, heads, HEAD), or None if IS_WHOLE
    tokens,  # T, padding included
    sequences,  # B
    heads,  # N
    queries,  # numbers a query from one head to the next
    tiles,  # tiles of COLUMNS keys in the longest sequence
    score_scale,  # log2(e) / sqrt(H)
    gradient_scale,  # dropout scale / sqrt(H)
    threshold,  # smallest hash that survives dropout, int32
    dropout_scale,  # what a survivor of dropout is multiplied by
    HAS_DROPOUT: tl.constexpr,
    IS_WHOLE: tl.constexpr,  # whether COLUMNS keys are all keys of the longest sequence
    HEAD: tl.constexpr,  # H
    BLOCK_H: tl.constexpr,  # H, rounded up to a power of two
    ROWS: tl.constexpr,  # queries read at once
    COLUMNS: tl.constexpr,  # keys and values of a program
    PADDING: tl.constexpr,  # room behind each sequence in ``lse`` and ``delta``, a multiple of ROWS
):
    """Differentiate by COLUMNS keys and values of one head, and write their part of the gradient of the queries."""
    # Which keys of which sequence: programs are numbered sequence by sequence.
    tile = tl.program_id(0) % tiles
    sequence = tl.program_id(0) // tiles
    head = tl.program_id(1)
    width = heads * HEAD
    start, length = _bounds(cu_seqlens_ptr, sequence, sequences, tokens)
    dqkv_ptr += head * HEAD
    if sequence == sequences:
        _write_zeros(dqkv_ptr, start, length, tile * ROWS, tiles * ROWS, 3 * width, HEAD, BLOCK_H, ROWS)
        _write_zeros(dqkv_ptr + width, start, length, tile * ROWS, tiles * ROWS, 3 * width, HEAD, BLOCK_H, ROWS)
        _write_zeros(dqkv_ptr + 2 * width, start, length, tile * ROWS, tiles * ROWS, 3 * width, HEAD, BLOCK_H, ROWS)
        return
    if tile * COLUMNS >= length:
        return

    # Move every pointer to this sequence and head; from here on rows and columns count within the sequence.
    h = tl.arange(0, BLOCK_H)
    first_col = tile * COLUMNS
    rows, columns = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    cols = first_col + columns
    qkv_ptr += start.to(tl.int64) * 3 * width + head * HEAD
    dqkv_ptr += start.to(tl.int64) * 3 * width
    dout_ptr += start.to(tl.int64) * width + head * HEAD
    first_query = head.to(tl.int64) * queries + _first_query(start, sequence, PADDING)
    lse_ptr += first_query
    delta_ptr += first_query
    if HAS_DROPOUT:
        key, second_key = _dropout_keys(seeds_ptr, constants_ptr, sequence, head)

    # Keys and values are loaded once, and their gradients are summed up in registers.
    col_offsets = cols[:, None] * 3 * width + h[None, :]
    col_mask = (cols < length)[:, None] & (h < HEAD)[None, :]
    k = tl.load(qkv_ptr + width + col_offsets, mask=col_mask, other=0.0)
    v = tl.load(qkv_ptr + 2 * width + col_offsets, mask=col_mask, other=0.0)
    dk = tl.zeros((COLUMNS, BLOCK_H), dtype=tl.float32)
    dv = tl.zeros((COLUMNS, BLOCK_H), dtype=tl.float32)
    for first in range(0, length, ROWS):
        row = first + rows
        row_mask = (row < length)[:, None] & (h < HEAD)[None, :]
        q = tl.load(qkv_ptr + row[:, None] * 3 * width + h[None, :], mask=row_mask, other=0.0)
        do = tl.load(dout_ptr + row[:, None] * width + h[None, :], mask=row_mask, other=0.0)
        log_total = tl.load(lse_ptr + row)

        # P again, as (keys, queries); zero for queries past the end, whose lse is +inf.
        p = exp2(tl.dot(k, tl.trans(q), input_precision="ieee") * score_scale - log_total[None, :])
        p = tl.where((cols < length)[:, None], p, 0.0)

        # dP, and what forward multiplied the values by: A = keep * P.
        dp = tl.dot(v, tl.trans(do), input_precision="ieee")
        a = p
        if HAS_DROPOUT:
            keep = are_pairs_kept(key, second_key, first, rows[None, :], first_col, columns[:, None], threshold)
            a = tl.where(keep, p, 0.0)
            dp = tl.where(keep, dp, 0.0)
        dv = tl.dot(a.to(do.dtype), do, dv, input_precision="ieee")

        # Through the softmax: dS = P * (dP - delta), then the products with queries and keys.
        delta = tl.sum(p * dp, axis=0) if IS_WHOLE else tl.load(delta_ptr + row)
        ds = (p * (dp - delta[None, :])).to(q.dtype)
        dk = tl.dot(ds, q, dk, input_precision="ieee")
        dq = tl.dot(tl.trans(ds), k, input_precision="ieee") * gradient_scale

        # With all keys in one tile this dQ is complete; otherwise it is one of several parts.
        if IS_WHOLE or length <= COLUMNS:
            tl.store(dqkv_ptr + row[:, None] * 3 * width + h[None, :], dq.to(dqkv_ptr.dtype.element_ty), mask=row_mask)
        else:
            offsets = (tile.to(tl.int64) * tokens + start + row)[:, None] * width + head * HEAD + h[None, :]
            tl.store(partials_ptr + offsets, dq, mask=row_mask)
    tl.store(dqkv_ptr + width + col_offsets, (dk * gradient_scale).to(dqkv_ptr.dtype.element_ty), mask=col_mask)
    tl.store(dqkv_ptr + 2 * width + col_offsets, (dv * dropout_scale).to(dqkv_ptr.dtype.element_ty), mask=col_mask)


@triton.jit
def attention_sum_tiles(
    partials_ptr,  # each key tile's part of dQ, float32, (tiles, tokens, width)
    cu_seqlens_ptr,  # where each sequence starts, int32, (sequences + 1,)
    dqkv_ptr,  # gradients of queries, keys and values, (tokens, 3, width)
    tokens,  # T, padding included
    width,  # D
    blocks,  # blocks of ROWS tokens in the longest sequence
    TILE: tl.constexpr,  # keys of a tile
    ROWS: tl.constexpr,  # tokens of a program
    COLUMNS: tl.constexpr,  # columns of a program
):
    """Add up the parts of dQ of one sequence, ROWS tokens of COLUMNS columns, in the order of key tiles."""
    block = tl.program_id(0) % blocks
    sequence = tl.program_id(0) // blocks
    start = tl.load(cu_seqlens_ptr + sequence)
    length = tl.load(cu_seqlens_ptr + sequence + 1) - start
    # A sequence of one tile has its dQ already.
    if (block * ROWS >= length) | (length <= TILE):
        return
    row = block * ROWS + tl.arange(0, ROWS)
    cols = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = (row < length)[:, None] & (cols < width)[None, :]
    offsets = (start + row).to(tl.int64)[:, None] * width + cols[None, :]
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for tile in range(0, (length + TILE - 1) // TILE):
        total += tl.load(partials_ptr + tl.cast(tile, tl.int64) * tokens * width + offsets, mask=mask, other=0.0)
    target = (start + row).to(tl.int64)[:, None] * 3 * width + cols[None, :]
    tl.store(dqkv_ptr + target, total.to(dqkv_ptr.dtype.element_ty), mask=mask)
