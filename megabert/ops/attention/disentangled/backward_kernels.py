"""Triton kernels of ``disentangled_attention``'s backward pass.

With P = exp2(S - lse), A = keep * P, c = dropout scale, s the scale of the scores, as in
``megabert.ops.attention.dense.backward_kernels``:

    dV = c A^T dO, dP = dO V^T, dS = A * dP - P * delta, delta = rowsum(dO * O) / c
    dQ = c s (dS K + dC PK),   dK = c s (dS^T Q + dD PQ),   dPK = c s dC^T Q,   dPQ = c s dD^T K

where dC and dD are the gradients of the products c2p and p2c, sums of dS over the pairs that share a position:

    dC(i, p) = sum of dS(i, j) over j,   dD(j, p) = sum of dS(i, j) over i,   both with position(i - j) = p

Three kernels after ``attention_delta``:

1. ``backward_keys``: a program owns COLUMNS keys and walks over queries. It computes dV and dS^T Q in registers, and
   writes dS, and dS^T if there are p2c scores, rounded to the dtype of the inputs as they enter every product.
2. ``backward_queries``: a program owns ROWS queries and multiplies dS with keys. Nothing is computed again.
3. ``sum_distances``: because the table of positions ascends, the distances of one position are a run, first[p] to
   first[p + 1] - 1. A program adds up the runs of some positions of ROWS queries (dC, from dS) or keys (dD, from dS^T),
   one distance after the other, in float32. Each element of dS is read once, and neighbours are read together.

Every address is written by one program, so results repeat bit for bit. The four products with PK, PQ, Q and K are
plain matrix products.
"""

# T packed tokens, B sequences, N heads, H head width, D = N * H, P positions, rounded up to a multiple of 16,
# L keys of the longest sequence, rounded up to whole tiles

import triton
import triton.language as tl

from megabert.ops.attention.dense.kernels import add_position_scores, bounds, dropout_keys, first_query, write_zeros
from megabert.ops.triton_support.device_functions import drop_pairs, exp2


@triton.jit(do_not_specialize=["tokens", "sequences", "blocks", "middle", "first_head"])
def disentangled_attention_backward_keys(
    qkv_ptr,  # queries, keys and values, (tokens, 3, heads, HEAD)
    position_ptr,  # position of each distance, int32, (2 * middle + 1,)
    c2p_ptr,  # products of queries with positions, (heads of this launch, tokens, positions), or None
    p2c_ptr,  # products of keys with positions, likewise, or None
    dout_ptr,  # gradient of the contexts, (tokens, heads, HEAD)
    cu_seqlens_ptr,  # where each sequence starts, int32, (sequences + 1,)
    seeds_ptr,  # dropout's seed of each sequence, int32, (sequences,), or None
    constants_ptr,  # dropout's constant of each head, int32, (heads,), or None
    lse_ptr,  # log2 of the softmax's denominator, float32, (heads, queries)
    delta_ptr,  # rowsum(A * dP), float32, (heads, queries)
    dqkv_ptr,  # gradients of queries, keys and values, (tokens, 3, heads, HEAD): keys' and values' are written
    ds_ptr,  # result, dS by query and key, (heads of this launch, tokens, longest)
    ds_by_key_ptr,  # result, dS by key and query, likewise, or None
    tokens,  # T, padding included
    queries,  # stride between heads in lse and delta, in elements
    sequences,  # B
    heads,  # N
    first_head,  # first head of this launch
    blocks,  # blocks of COLUMNS keys in the longest sequence
    middle,  # place of distance 0 in the table of positions
    positions,  # P
    longest,  # L, a multiple of ROWS and COLUMNS
    score_scale,  # log2(e) / sqrt(H * kinds)
    gradient_scale,  # dropout scale / sqrt(H * kinds)
    threshold,  # smallest hash that survives dropout, int32
    dropout_scale,  # factor of the survivors of dropout
    HEAD: tl.constexpr,  # H
    BLOCK_H: tl.constexpr,  # H, rounded up to a power of two
    ROWS: tl.constexpr,  # queries read at once
    COLUMNS: tl.constexpr,  # keys and values of a program
    PADDING: tl.constexpr,  # room after each sequence in ``lse`` and ``delta``, a multiple of ROWS
):
    """Differentiate by COLUMNS keys and values of one head, and write dS of all pairs with them."""
    block = tl.program_id(0) % blocks
    sequence = tl.program_id(0) // blocks
    head = first_head + tl.program_id(1)
    width = heads * HEAD
    start, length = bounds(cu_seqlens_ptr, sequence, sequences, tokens)
    dqkv_ptr += width + head * HEAD
    if sequence == sequences:
        step = blocks * COLUMNS
        write_zeros(dqkv_ptr, start, length, block * COLUMNS, step, 3 * width, HEAD, BLOCK_H, COLUMNS)
        write_zeros(dqkv_ptr + width, start, length, block * COLUMNS, step, 3 * width, HEAD, BLOCK_H, COLUMNS)
        return
    if block * COLUMNS >= length:
        return

    # Move every pointer to this sequence and head; from here on rows and columns count within the sequence.
    h, rows, columns = tl.arange(0, BLOCK_H), tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    cols = block * COLUMNS + columns
    qkv_ptr += start.to(tl.int64) * 3 * width + head * HEAD
    dqkv_ptr += start.to(tl.int64) * 3 * width
    dout_ptr += start.to(tl.int64) * width + head * HEAD
    numbers = head.to(tl.int64) * queries + first_query(start, sequence, PADDING)
    first_pair = tl.program_id(1).to(tl.int64) * tokens + start
    if c2p_ptr is not None:
        c2p_ptr += first_pair * positions
    if p2c_ptr is not None:
        p2c_ptr += first_pair * positions
    products = (position_ptr, c2p_ptr, p2c_ptr)
    ds_ptr += first_pair * longest
    if ds_by_key_ptr is not None:
        ds_by_key_ptr += first_pair * longest
    if seeds_ptr is not None:
        keys = dropout_keys(seeds_ptr, constants_ptr, sequence, head)

    # Keys and values are loaded once, and their gradients are summed up in registers. Past the end, scores are of the
    # last key again: with a key of zeros, 2^(S - lse) could be infinite. Its value is zero there, and dS is multiplied
    # with a key of zeros, or masked, by the kernels that read it.
    real = tl.minimum(cols, length - 1)
    k = tl.load(qkv_ptr + width + real[:, None] * 3 * width + h[None, :], mask=(h < HEAD)[None, :], other=0.0)
    col_mask = (cols < length)[:, None] & (h < HEAD)[None, :]
    col_offsets = cols[:, None] * 3 * width + h[None, :]
    v = tl.load(qkv_ptr + 2 * width + col_offsets, mask=col_mask, other=0.0)
    dk = tl.zeros((COLUMNS, BLOCK_H), dtype=tl.float32)
    dv = tl.zeros((COLUMNS, BLOCK_H), dtype=tl.float32)
    for first in range(0, length, ROWS):
        row = first + rows
        row_mask = (row < length)[:, None] & (h < HEAD)[None, :]
        q = tl.load(qkv_ptr + row[:, None] * 3 * width + h[None, :], mask=row_mask, other=0.0)
        do = tl.load(dout_ptr + row[:, None] * width + h[None, :], mask=row_mask, other=0.0)

        # P again, as (keys, queries); zero for queries past the end, whose lse is +inf.
        scores = tl.dot(k, tl.trans(q), input_precision="ieee") * score_scale
        last = tl.minimum(row, length - 1)
        scores = add_position_scores(scores, last[None, :], real[:, None], products, middle, positions)
        p = exp2(scores - tl.load(lse_ptr + numbers + row)[None, :])
        a = p
        if seeds_ptr is not None:
            a = drop_pairs(p, keys, first, rows[None, :], block * COLUMNS, columns[:, None], threshold)
        dv = tl.dot(a.to(do.dtype), do, dv, input_precision="ieee")

        # Through the softmax, then the product with queries; the others read dS from memory.
        dp = tl.dot(v, tl.trans(do), input_precision="ieee")
        delta = tl.load(delta_ptr + numbers + row)
        ds = (a * dp - p * delta[None, :]).to(q.dtype)
        dk = tl.dot(ds, q, dk, input_precision="ieee")
        tl.store(ds_ptr + row[None, :] * longest + cols[:, None], ds, mask=(row < length)[None, :])
        if ds_by_key_ptr is not None:
            tl.store(ds_by_key_ptr + cols[:, None] * longest + row[None, :], ds, mask=(cols < length)[:, None])
    dk = (dk * gradient_scale).to(dqkv_ptr.dtype.element_ty)
    dv = (dv * dropout_scale).to(dqkv_ptr.dtype.element_ty)
    tl.store(dqkv_ptr + col_offsets, dk, mask=col_mask)
    tl.store(dqkv_ptr + width + col_offsets, dv, mask=col_mask)


@triton.jit(do_not_specialize=["tokens", "sequences", "blocks", "first_head"])
def disentangled_attention_backward_queries(
    qkv_ptr,  # queries, keys and values, (tokens, 3, heads, HEAD)
    ds_ptr,  # dS by query and key, (heads of this launch, tokens, longest)
    cu_seqlens_ptr,  # where each sequence starts, int32, (sequences + 1,)
    dqkv_ptr,  # gradients of queries, keys and values, (tokens, 3, heads, HEAD): queries' are written
    tokens,  # T, padding included
    sequences,  # B
    heads,  # N
    first_head,  # first head of this launch
    blocks,  # blocks of ROWS queries in the longest sequence
    longest,  # L
    gradient_scale,  # dropout scale / sqrt(H * kinds)
    HEAD: tl.constexpr,  # H
    BLOCK_H: tl.constexpr,  # H, rounded up to a power of two
    ROWS: tl.constexpr,  # queries of a program
    COLUMNS: tl.constexpr,  # keys read at once; at most the keys of a program of ``backward_keys``
):
    """Differentiate by ROWS queries of one head, as far as they meet contents: c s dS K."""
    block = tl.program_id(0) % blocks
    sequence = tl.program_id(0) // blocks
    head = first_head + tl.program_id(1)
    width = heads * HEAD
    start, length = bounds(cu_seqlens_ptr, sequence, sequences, tokens)
    dqkv_ptr += head * HEAD
    if sequence == sequences:
        write_zeros(dqkv_ptr, start, length, block * ROWS, blocks * ROWS, 3 * width, HEAD, BLOCK_H, ROWS)
        return
    if block * ROWS >= length:
        return
    h, columns = tl.arange(0, BLOCK_H), tl.arange(0, COLUMNS)
    row = block * ROWS + tl.arange(0, ROWS)
    qkv_ptr += start.to(tl.int64) * 3 * width + head * HEAD
    ds_ptr += (tl.program_id(1).to(tl.int64) * tokens + start) * longest
    row_offsets = tl.minimum(row, length - 1)[:, None] * longest
    dq = tl.zeros((ROWS, BLOCK_H), dtype=tl.float32)
    for first in range(0, length, COLUMNS):
        cols = first + columns
        mask = (cols < length)[:, None] & (h < HEAD)[None, :]
        k = tl.load(qkv_ptr + width + cols[:, None] * 3 * width + h[None, :], mask=mask, other=0.0)
        ds = tl.load(ds_ptr + row_offsets + cols[None, :])
        dq = tl.dot(ds, k, dq, input_precision="ieee")
    dq = (dq * gradient_scale).to(dqkv_ptr.dtype.element_ty)
    offsets = (start + row).to(tl.int64)[:, None] * 3 * width + h[None, :]
    tl.store(dqkv_ptr + offsets, dq, mask=(row < length)[:, None] & (h < HEAD)[None, :])


@triton.jit(do_not_specialize=["tokens", "sequences", "blocks", "middle"])
def disentangled_attention_sum_distances(
    ds_ptr,  # dS by query and key, or by key and query, (heads of this launch, tokens, longest)
    first_ptr,  # place in the table of distances of each position's first one, int32, (positions + 1,)
    cu_seqlens_ptr,  # where each sequence starts, int32, (sequences + 1,)
    sums_ptr,  # result, (heads of this launch, tokens, positions)
    tokens,  # T, padding included
    sequences,  # B
    blocks,  # blocks of ROWS tokens in the longest sequence
    middle,  # place of distance 0 in the table of positions
    positions,  # P
    longest,  # L
    IS_BY_KEY: tl.constexpr,  # whether rows are keys
    ROWS: tl.constexpr,  # queries or keys of a program
    COLUMNS: tl.constexpr,  # positions of a program
):
    """Add up dS over the distances of each of COLUMNS positions, for ROWS queries or keys of one head."""
    block = tl.program_id(0) % blocks
    sequence = tl.program_id(0) // blocks
    start, length = bounds(cu_seqlens_ptr, sequence, sequences, tokens)
    cols = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    rows = tl.arange(0, ROWS)
    first_row = tl.program_id(1).to(tl.int64) * tokens + start
    sums_ptr += first_row * positions
    if sequence == sequences:
        for begin in range(block * ROWS, length, blocks * ROWS):
            row = begin + rows
            mask = (row < length)[:, None] & (cols < positions)[None, :]
            zeros = tl.zeros((ROWS, COLUMNS), dtype=sums_ptr.dtype.element_ty)
            tl.store(sums_ptr + row.to(tl.int64)[:, None] * positions + cols[None, :], zeros, mask=mask)
        return
    if block * ROWS >= length:
        return
    row = block * ROWS + rows
    ds_ptr += first_row * longest
    mask = (row < length)[:, None] & (cols < positions)[None, :]
    # The distances of each position, as far as one of these rows has a token there.
    if IS_BY_KEY:
        least, most = 1 - (block + 1) * ROWS, length - 1 - block * ROWS
    else:
        least, most = block * ROWS - length + 1, (block + 1) * ROWS - 1
    place = tl.maximum(tl.load(first_ptr + cols, mask=cols < positions, other=0), middle + least)
    end = tl.minimum(tl.load(first_ptr + cols + 1, mask=cols < positions, other=0), middle + most + 1)
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for _ in range(0, tl.max(end - place)):
        distance = tl.where(place < end, place - middle, longest)[None, :]  # that far away there is no token
        other = row[:, None] + distance if IS_BY_KEY else row[:, None] - distance
        there = mask & (other >= 0) & (other < length)
        total += tl.load(ds_ptr + row[:, None] * longest + other, mask=there, other=0.0).to(tl.float32)
        place += 1
    tl.store(sums_ptr + row[:, None] * positions + cols[None, :], total.to(sums_ptr.dtype.element_ty), mask=mask)
