"""Triton kernels of ``rotary_attention``'s backward pass: one by queries, then one by keys and values.

With P = exp2(S - lse), A = keep * P, c = dropout scale, over the pairs of a query and a key that see each other:

    delta = rowsum(dO * O) / c, dP = dO V^T, dS = A * dP - P * delta,
    dQ = c dS K / sqrt(H), dV = c A^T dO, dK = c dS^T Q / sqrt(H)

BERT's kernel (``megabert.ops.attention.dense.backward_kernels``) computes P once for all three and keeps parts of dQ in
float32 scratch: 512 bytes, written and read, per query, head and tile of 128 keys. With a window that is as much as all
else that is moved; with 8,192 keys it is 13 GB per layer of 32,768 tokens and 12 heads. Here P is computed twice,
without scratch. No kernel has atomics, so results repeat. Gradients of turned queries and keys are turned back at the
end.
"""

# T packed tokens, B sequences, N heads, H head width, E = H / 2 pairs of a head, D = N * H

import triton
import triton.language as tl

from megabert.ops.attention.dense.kernels import dropout_keys, place_and_head, write_zeros
from megabert.ops.attention.rotary.kernels import (
    first_key,
    is_seen,
    last_key,
    load_turned,
    products_of_halves,
    store_turned_back,
    tile_of,
)
from megabert.ops.triton_support.device_functions import drop_pairs, exp2


@triton.jit(do_not_specialize=["tokens", "sequences"])
def rotary_attention_backward_queries(
    qkv_ptr,  # queries, keys and values, (tokens, 3, heads, HEAD)
    turns_ptr,  # cosines and sines, float32, (positions, 2, E)
    out_ptr,  # contexts, (tokens, heads, HEAD)
    dout_ptr,  # their gradient, (tokens, heads, HEAD)
    cu_seqlens_ptr,  # where each sequence starts, int32, (sequences + 1,)
    seeds_ptr,  # dropout's seed of each sequence, int32, (sequences,), or None
    constants_ptr,  # dropout's constant of each head, int32, (heads,), or None
    lse_ptr,  # log2 of the softmax's denominator, float32, (heads, queries)
    delta_ptr,  # result: rowsum(A * dP), float32, (heads, queries)
    dqkv_ptr,  # gradients of queries, keys and values, (tokens, 3, heads, HEAD): queries' are written
    tokens,  # T, padding included
    queries,  # stride between heads in lse and delta, in elements
    sequences,  # B
    heads,  # N
    score_scale,  # log2(e) / sqrt(H)
    gradient_scale,  # dropout scale / sqrt(H)
    threshold,  # smallest hash that survives dropout, int32
    inverse_scale,  # 1 / dropout scale
    REACH: tl.constexpr,  # tokens to each side that a query sees; 0: all
    IS_TURNED: tl.constexpr,  # whether queries and keys are turned in memory
    HEAD: tl.constexpr,  # H
    BLOCK_E: tl.constexpr,  # E, rounded up to a power of two, at least 16
    BLOCK_H: tl.constexpr,  # H, rounded up to a power of two
    ROWS: tl.constexpr,  # queries of a program, as in a tile of ``lse``
    COLUMNS: tl.constexpr,  # keys read at once
):
    """Differentiate by ROWS queries of one head, and write their delta for the keys."""
    tile, head = place_and_head(heads)
    sequence, start, length, first_row = tile_of(cu_seqlens_ptr, sequences, tokens, tile, ROWS)
    width = heads * HEAD
    dqkv_ptr += head * HEAD
    if sequence == sequences:
        write_zeros(dqkv_ptr, start, length, first_row, tokens, 3 * width, HEAD, BLOCK_H, ROWS)
        return
    if first_row >= length:
        return

    # What belongs to the queries is loaded once.
    rows, h = tl.arange(0, ROWS), tl.arange(0, BLOCK_H)
    row = first_row + rows
    qkv_ptr += start.to(tl.int64) * 3 * width + head * HEAD
    dqkv_ptr += start.to(tl.int64) * 3 * width
    q_first, q_second = load_turned(qkv_ptr, turns_ptr, row, length, 3 * width, IS_TURNED, HEAD, BLOCK_E)
    offsets = (start + row).to(tl.int64)[:, None] * width + head * HEAD + h[None, :]
    mask = (row < length)[:, None] & (h < HEAD)[None, :]
    do = tl.load(dout_ptr + offsets, mask=mask, other=0.0)
    o = tl.load(out_ptr + offsets, mask=mask, other=0.0)
    delta = tl.sum(do.to(tl.float32) * o.to(tl.float32), axis=1) * inverse_scale
    numbers = head.to(tl.int64) * queries + tile * ROWS + rows
    tl.store(delta_ptr + numbers, delta)
    lse = tl.load(lse_ptr + numbers)
    if seeds_ptr is not None:
        keys = dropout_keys(seeds_ptr, constants_ptr, sequence, head)

    dq_first = tl.zeros((ROWS, BLOCK_E), dtype=tl.float32)
    dq_second = tl.zeros((ROWS, BLOCK_E), dtype=tl.float32)
    columns = tl.arange(0, COLUMNS)
    begin = first_key(first_row, length, REACH, COLUMNS)
    end = last_key(first_row, length, REACH, ROWS)
    # Without a window, first the tiles that the sequence fills; then the tiles in which a query may not see some key.
    for is_masked in tl.static_range(1 if REACH else 0, 2):
        for first_col in range(begin if is_masked else 0, end if is_masked else begin, COLUMNS):
            cols = first_col + columns
            k_first, k_second = load_turned(
                qkv_ptr + width, turns_ptr, cols, length, 3 * width, IS_TURNED, HEAD, BLOCK_E
            )
            v_mask = (cols < length)[:, None] & (h < HEAD)[None, :]
            v = tl.load(qkv_ptr + 2 * width + cols[:, None] * 3 * width + h[None, :], mask=v_mask, other=0.0)
            p = exp2(products_of_halves(q_first, q_second, k_first, k_second) * score_scale - lse[:, None])
            if is_masked:
                seen = is_seen((first_row + rows)[:, None], first_col, columns[None, :], length, REACH)
                p = tl.where(seen, p, 0.0)
            a = p
            if seeds_ptr is not None:
                a = drop_pairs(p, keys, first_row, rows[:, None], first_col, columns[None, :], threshold)
            ds = (a * tl.dot(do, tl.trans(v), input_precision="ieee") - p * delta[:, None]).to(do.dtype)
            dq_first = tl.dot(ds, k_first, dq_first, input_precision="ieee")
            dq_second = tl.dot(ds, k_second, dq_second, input_precision="ieee")
    store_turned_back(
        dqkv_ptr, turns_ptr, dq_first * gradient_scale, dq_second * gradient_scale, row, length, 3 * width, HEAD,
        BLOCK_E,
    )  # fmt: skip


@triton.jit(do_not_specialize=["tokens", "sequences"])
def rotary_attention_backward_keys(
    qkv_ptr,  # queries, keys and values, (tokens, 3, heads, HEAD)
    turns_ptr,  # cosines and sines, float32, (positions, 2, E)
    dout_ptr,  # gradient of the contexts, (tokens, heads, HEAD)
    cu_seqlens_ptr,  # where each sequence starts, int32, (sequences + 1,)
    seeds_ptr,  # dropout's seed of each sequence, int32, (sequences,), or None
    constants_ptr,  # dropout's constant of each head, int32, (heads,), or None
    lse_ptr,  # log2 of the softmax's denominator, float32, (heads, queries)
    delta_ptr,  # rowsum(A * dP), float32, (heads, queries)
    dqkv_ptr,  # gradients of queries, keys and values, (tokens, 3, heads, HEAD): keys' and values' are written
    tokens,  # T, padding included
    queries,  # stride between heads in lse and delta, in elements
    sequences,  # B
    heads,  # N
    score_scale,  # log2(e) / sqrt(H)
    gradient_scale,  # dropout scale / sqrt(H)
    threshold,  # smallest hash that survives dropout, int32
    dropout_scale,  # factor of the survivors of dropout
    REACH: tl.constexpr,  # tokens to each side that a query sees; 0: all
    IS_TURNED: tl.constexpr,  # whether queries and keys are turned in memory
    HEAD: tl.constexpr,  # H
    BLOCK_E: tl.constexpr,  # E, rounded up to a power of two, at least 16
    BLOCK_H: tl.constexpr,  # H, rounded up to a power of two
    ROWS: tl.constexpr,  # queries read at once
    COLUMNS: tl.constexpr,  # keys and values of a program
    PADDING: tl.constexpr,  # queries of a tile of ``lse``, a multiple of ROWS
):
    """Differentiate by COLUMNS keys and values of one head.

    Scores are transposed (keys by queries), so that both products with them take their left side from registers. Rows
    of keys past the end may hold anything and are not written. Queries past the end have an lse of +inf: P is zero.
    """
    tile, head = place_and_head(heads)
    sequence, start, length, first_col = tile_of(cu_seqlens_ptr, sequences, tokens, tile, COLUMNS)
    width = heads * HEAD
    dqkv_ptr += head * HEAD + width
    if sequence == sequences:
        write_zeros(dqkv_ptr, start, length, first_col, tokens, 3 * width, HEAD, BLOCK_H, COLUMNS)
        write_zeros(dqkv_ptr + width, start, length, first_col, tokens, 3 * width, HEAD, BLOCK_H, COLUMNS)
        return
    if first_col >= length:
        return

    # Move every pointer to this sequence and head; keys and values are loaded once.
    rows, columns, h = tl.arange(0, ROWS), tl.arange(0, COLUMNS), tl.arange(0, BLOCK_H)
    cols = first_col + columns
    qkv_ptr += start.to(tl.int64) * 3 * width + head * HEAD
    dqkv_ptr += start.to(tl.int64) * 3 * width
    dout_ptr += start.to(tl.int64) * width + head * HEAD
    numbers = head.to(tl.int64) * queries + (start // PADDING + sequence) * PADDING
    k_first, k_second = load_turned(qkv_ptr + width, turns_ptr, cols, length, 3 * width, IS_TURNED, HEAD, BLOCK_E)
    v_mask = (cols < length)[:, None] & (h < HEAD)[None, :]
    v_offsets = cols[:, None] * 3 * width + h[None, :]
    v = tl.load(qkv_ptr + 2 * width + v_offsets, mask=v_mask, other=0.0)
    if seeds_ptr is not None:
        keys = dropout_keys(seeds_ptr, constants_ptr, sequence, head)

    dk_first = tl.zeros((COLUMNS, BLOCK_E), dtype=tl.float32)
    dk_second = tl.zeros((COLUMNS, BLOCK_E), dtype=tl.float32)
    dv = tl.zeros((COLUMNS, BLOCK_H), dtype=tl.float32)
    begin = 0
    if REACH:
        begin = first_key(first_col, length, REACH, ROWS)
    for first_row in range(begin, last_key(first_col, length, REACH, COLUMNS), ROWS):
        row = first_row + rows
        q_first, q_second = load_turned(qkv_ptr, turns_ptr, row, length, 3 * width, IS_TURNED, HEAD, BLOCK_E)
        mask = (row < length)[:, None] & (h < HEAD)[None, :]
        do = tl.load(dout_ptr + row[:, None] * width + h[None, :], mask=mask, other=0.0)
        lse = tl.load(lse_ptr + numbers + row)
        p = exp2(products_of_halves(k_first, k_second, q_first, q_second) * score_scale - lse[None, :])
        if REACH:
            offset = (first_row + REACH - cols)[:, None] + rows[None, :]
            p = tl.where(offset.to(tl.uint32, bitcast=True) <= 2 * REACH, p, 0.0)
        a = p
        if seeds_ptr is not None:
            a = drop_pairs(p, keys, first_row, rows[None, :], first_col, columns[:, None], threshold)
        dv = tl.dot(a.to(do.dtype), do, dv, input_precision="ieee")
        delta = tl.load(delta_ptr + numbers + row)
        ds = (a * tl.dot(v, tl.trans(do), input_precision="ieee") - p * delta[None, :]).to(do.dtype)
        dk_first = tl.dot(ds, q_first, dk_first, input_precision="ieee")
        dk_second = tl.dot(ds, q_second, dk_second, input_precision="ieee")
    store_turned_back(
        dqkv_ptr, turns_ptr, dk_first * gradient_scale, dk_second * gradient_scale, cols, length, 3 * width, HEAD,
        BLOCK_E,
    )  # fmt: skip
    tl.store(dqkv_ptr + width + v_offsets, (dv * dropout_scale).to(dqkv_ptr.dtype.element_ty), mask=v_mask)
