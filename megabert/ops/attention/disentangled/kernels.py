"""Triton kernel of ``disentangled_attention``'s forward pass, and the scores that it shares with the backward pass.

As in ``megabert.ops.attention.dense.kernels`` a program owns ROWS queries of one head and walks over keys with a
running maximum. What differs are the scores of positions. Contents have been multiplied with all P positions by plain
matrix products before, which are linear in T:

    c2p(i, p) = q_i . pk_p,   p2c(j, p) = k_j . pq_p

so that the score of a pair is three numbers, one from registers and two from memory, and p = position(i - j) is read
from a table of all distances:

    S(i, j) = q_i . k_j + c2p(i, p) + p2c(j, p)

A tile of 64 x 64 scores has 127 distances, and a row of it reads 64 products, which stay in the cache: pairs on one
diagonal share p, and neighbours on a row or column read neighbours. The products have the scale of the scores already,
so that a large one does not overflow float16.
"""

# T packed tokens, B sequences, N heads, H head width, D = N * H, P positions, rounded up to a multiple of 16,
# E distances

import triton
import triton.language as tl

from megabert.ops.attention.dense.kernels import (
    bounds,
    dropout_keys,
    first_query,
    scores_and_values,
    weigh,
    write_zeros,
)
from megabert.ops.triton_support.device_functions import drop_pairs


@triton.jit(do_not_specialize=["tokens", "sequences", "blocks", "middle", "first_head"])
def disentangled_attention_forward(
    qkv_ptr,  # queries, keys and values, (tokens, 3, heads, HEAD)
    position_ptr,  # position of each distance, int32, (2 * middle + 1,)
    c2p_ptr,  # products of queries with positions, (heads of this launch, tokens, positions), or None
    p2c_ptr,  # products of keys with positions, likewise, or None
    cu_seqlens_ptr,  # where each sequence starts, int32, (sequences + 1,)
    seeds_ptr,  # dropout's seed of each sequence, int32, (sequences,), or None
    constants_ptr,  # dropout's constant of each head, int32, (heads,), or None
    out_ptr,  # contexts, (tokens, heads, HEAD)
    lse_ptr,  # log2 of the softmax's denominator, float32, (heads, queries), for the backward pass
    tokens,  # T, padding included
    queries,  # stride between heads in lse, in elements
    sequences,  # B
    heads,  # N
    first_head,  # first head of this launch
    blocks,  # blocks of ROWS queries in the longest sequence
    middle,  # place of distance 0 in the table of positions
    positions,  # P
    score_scale,  # log2(e) / sqrt(H * kinds)
    threshold,  # smallest hash that survives dropout, int32
    dropout_scale,  # factor of the survivors of dropout
    HEAD: tl.constexpr,  # H
    BLOCK_H: tl.constexpr,  # H, rounded up to a power of two
    ROWS: tl.constexpr,  # queries of a program
    COLUMNS: tl.constexpr,  # keys read at once
):
    """Attend with ROWS queries of one head to all keys of their sequence."""
    # Which queries of which sequence: programs are numbered sequence by sequence.
    block = tl.program_id(0) % blocks
    sequence = tl.program_id(0) // blocks
    head = first_head + tl.program_id(1)
    width = heads * HEAD
    start, length = bounds(cu_seqlens_ptr, sequence, sequences, tokens)
    out_ptr += head * HEAD
    if sequence == sequences:
        write_zeros(out_ptr, start, length, block * ROWS, blocks * ROWS, width, HEAD, BLOCK_H, ROWS)
        return
    if block * ROWS >= length:
        return

    # The queries are loaded once. Past the end, products are read of the last query again.
    h = tl.arange(0, BLOCK_H)
    rows, columns = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    row = block * ROWS + rows
    real = tl.minimum(row, length - 1)
    qkv_ptr += start.to(tl.int64) * 3 * width + head * HEAD
    first_product = (tl.program_id(1).to(tl.int64) * tokens + start) * positions
    if c2p_ptr is not None:
        c2p_ptr += first_product
    if p2c_ptr is not None:
        p2c_ptr += first_product
    products = (position_ptr, c2p_ptr, p2c_ptr)
    row_mask = (row < length)[:, None] & (h < HEAD)[None, :]
    q = tl.load(qkv_ptr + row[:, None] * 3 * width + h[None, :], mask=row_mask, other=0.0)
    if seeds_ptr is not None:
        keys = dropout_keys(seeds_ptr, constants_ptr, sequence, head)

    # Walk over the keys: tiles that the sequence fills, then the rest, where keys past the end need a mask.
    highest = tl.full((ROWS,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((ROWS,), dtype=tl.float32)
    context = tl.zeros((ROWS, BLOCK_H), dtype=tl.float32)
    filled = length // COLUMNS * COLUMNS
    for is_tail in tl.static_range(2):
        for first in range(filled if is_tail else 0, length if is_tail else filled, COLUMNS):
            scores, v = scores_and_values(
                q, qkv_ptr, first, length, width, is_tail, HEAD, BLOCK_H, COLUMNS,
                (score_scale, real, products, middle, positions),
            )  # fmt: skip
            p, shrink, total, highest = weigh(scores, total, highest, 1.0)
            if seeds_ptr is not None:  # after the sum: a dropped probability stays in the denominator
                p = drop_pairs(p, keys, block * ROWS, rows[:, None], first, columns[None, :], threshold)
            context = tl.dot(p.to(v.dtype), v, context * shrink[:, None], input_precision="ieee")

    # Divide by the denominator, and keep its logarithm.
    context *= (dropout_scale / total)[:, None]
    offsets = (start + row).to(tl.int64)[:, None] * width + h[None, :]
    tl.store(out_ptr + offsets, context.to(out_ptr.dtype.element_ty), mask=row_mask)
    lse = tl.where(row < length, highest + tl.log2(total), float("inf"))
    tl.store(lse_ptr + head.to(tl.int64) * queries + first_query(start, sequence, ROWS) + row, lse)
