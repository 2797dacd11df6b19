"""Triton kernel of ``attention``'s forward pass, and the functions that it shares with ``backward_kernels``.

A program owns ROWS queries of one head and walks over keys with a running maximum (Dao 2023, FlashAttention-2);
probabilities never reach memory. It keeps the base-2 logarithm of each softmax's denominator (lse). A dropped
probability stays in the denominator.

S = Q K^T / sqrt(H) is multiplied by log2(e), because a GPU has an instruction for 2^x and none for e^x.
Programs are launched for the longest sequence; those past the end of a shorter one return at once. Tokens past the last
sequence form one more "sequence" whose programs write zeros.

lse and delta, one number per query, have buffers of their own layout, in which every sequence begins at a multiple of
16 and has room for a tile after its end: whole tiles are written and read there without masks, which cost 6 of 34
instructions per element of the scores. Past a sequence's end lse is +inf, so that P = exp2(S - lse) is 0 there.
"""

# T packed tokens, B sequences, N heads, H head width, D = N * H

import triton
import triton.language as tl

from megabert.ops.triton_support.device_functions import GOLDEN, drop_pairs, exp2, lowbias32


@triton.jit
def bounds(
    cu_seqlens_ptr,  # where each sequence starts, int32, (sequences + 1,)
    sequence,  # which one; ``sequences`` is the padding after the last
    sequences,  # how many there are
    tokens,  # T, padding included
):
    """Return the first token of a sequence and its length."""
    start = tl.load(cu_seqlens_ptr + sequence)
    end = tl.load(cu_seqlens_ptr + sequence + 1, mask=sequence < sequences, other=0)
    return start, tl.where(sequence < sequences, end, tokens) - start


@triton.jit
def place_and_head(
    heads,  # programs of a place, such as N
):
    """Return a program's place in the packed tokens and its head.

    Programs that run at the same time have neighbouring heads of few places. A token's heads lie side by side, so these
    programs read whole pages of DRAM: 17 instead of 132 by 132 programs of BERT-Large.
    """
    return tl.program_id(0) // heads, tl.program_id(0) % heads


@triton.jit
def first_query(start, sequence, PADDING: tl.constexpr):
    """Return where a sequence that begins at token ``start`` begins in ``lse`` and ``delta``, a multiple of 16."""
    return start // 16 * 16 + sequence * (PADDING + 16)


@triton.jit
def dropout_keys(
    seeds_ptr,  # seed of each sequence, int32, (sequences,)
    constants_ptr,  # constant of each head at this site, int32, (heads,)
    sequence,  # which sequence
    head,  # which head
    mask=None,  # whether there is such a sequence
):
    """Return the key of a sequence and head, and the second key that is derived from it."""
    seed = tl.load(seeds_ptr + sequence, mask=mask)
    key = lowbias32((seed ^ tl.load(constants_ptr + head)).to(tl.uint32, bitcast=True))
    return key, lowbias32(key + GOLDEN)


@triton.jit
def write_zeros(
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
def add_position_scores(
    scores,  # scores of contents, scaled, of a tile
    query,  # its queries, of a shape that broadcasts against ``key``
    key,  # its keys; both count within the sequence and are not past its end
    products,  # the table of distances, products of queries (c2p) and of keys (p2c), moved to a sequence and head
    middle,  # place of distance 0 in the table
    positions,  # P
):
    """Add the scores of contents with positions and of positions with contents, as far as there are any."""
    position_ptr, c2p_ptr, p2c_ptr = products
    if c2p_ptr is None and p2c_ptr is None:
        return scores
    position = tl.load(position_ptr + (middle + query - key))
    if c2p_ptr is not None:
        scores += tl.load(c2p_ptr + (query * positions + position)).to(tl.float32)
    if p2c_ptr is not None:
        scores += tl.load(p2c_ptr + (key * positions + position)).to(tl.float32)
    return scores


@triton.jit
def scores_and_values(
    q,  # queries, (rows, BLOCK_H)
    qkv_ptr,  # queries, keys and values of one sequence and head
    first,  # first key of the tile
    length,  # keys of the sequence
    width,  # D
    IS_TAIL: tl.constexpr,  # whether the tile reaches past the end
    HEAD: tl.constexpr,  # H
    BLOCK_H: tl.constexpr,  # H, rounded up to a power of two
    COLUMNS: tl.constexpr,  # keys of the tile
    distances=None,  # DeBERTa's: scale, numbers of the queries, and the last three of ``add_position_scores``
):
    """Return Q K^T, or scaled scores that count distances, -inf for keys past the end, and the values of a tile."""
    h = tl.arange(0, BLOCK_H)
    cols = first + tl.arange(0, COLUMNS)
    offsets = cols[:, None] * 3 * width + h[None, :]
    mask = (h < HEAD)[None, :]
    if IS_TAIL:
        mask &= (cols < length)[:, None]
    k = tl.load(qkv_ptr + width + offsets, mask=mask, other=0.0)
    v = tl.load(qkv_ptr + 2 * width + offsets, mask=mask, other=0.0)
    scores = tl.dot(q, tl.trans(k), input_precision="ieee")
    if distances is not None:
        score_scale, row, products, middle, positions = distances
        real = tl.minimum(cols, length - 1) if IS_TAIL else cols
        scores = add_position_scores(scores * score_scale, row[:, None], real[None, :], products, middle, positions)
    if IS_TAIL:
        scores = tl.where((cols < length)[None, :], scores, float("-inf"))
    return scores, v


@triton.jit
def weigh(scores, total, highest, score_scale):
    """Return 2^(scores - new maximum), the factor by which sums over earlier keys shrink, denominator and maximum.

    ``highest`` is the largest score so far, ``total`` the sum of 2^(score - highest); when the maximum rises, sums over
    earlier keys shrink to the new one.
    """
    higher = tl.maximum(highest, tl.max(scores, axis=1) * score_scale)
    shrink = exp2(highest - higher)
    p = exp2(scores * score_scale - higher[:, None])
    return p, shrink, total * shrink + tl.sum(p, axis=1), higher


@triton.jit(do_not_specialize=["tokens", "sequences"])
def attention_forward(
    qkv_ptr,  # queries, keys and values, (tokens, 3, heads, HEAD)
    cu_seqlens_ptr,  # where each sequence starts, int32, (sequences + 1,)
    seeds_ptr,  # dropout's seed of each sequence, int32, (sequences,), or None
    constants_ptr,  # dropout's constant of each head, int32, (heads,), or None
    out_ptr,  # contexts, (tokens, heads, HEAD)
    lse_ptr,  # log2 of the softmax's denominator, float32, (heads, queries), for the backward pass
    tokens,  # T, padding included
    queries,  # stride between heads in lse, in elements
    sequences,  # B
    heads,  # N
    blocks,  # blocks of ROWS queries in the longest sequence
    score_scale,  # log2(e) / sqrt(H)
    threshold,  # smallest hash that survives dropout, int32
    dropout_scale,  # factor of the survivors of dropout
    HEAD: tl.constexpr,  # H
    BLOCK_H: tl.constexpr,  # H, rounded up to a power of two
    ROWS: tl.constexpr,  # queries of a program
    COLUMNS: tl.constexpr,  # keys read at once
):
    """Attend with ROWS queries of one head to all keys of their sequence."""
    # Which queries of which sequence: programs are numbered sequence by sequence.
    place, head = place_and_head(heads)
    block = place % blocks
    sequence = place // blocks
    width = heads * HEAD
    start, length = bounds(cu_seqlens_ptr, sequence, sequences, tokens)
    out_ptr += head * HEAD
    if sequence == sequences:
        write_zeros(out_ptr, start, length, block * ROWS, blocks * ROWS, width, HEAD, BLOCK_H, ROWS)
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
    if seeds_ptr is not None:
        keys = dropout_keys(seeds_ptr, constants_ptr, sequence, head)

    # Walk over the keys: tiles that the sequence fills, then the rest, where keys past the end need a mask.
    highest = tl.full((ROWS,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((ROWS,), dtype=tl.float32)
    context = tl.zeros((ROWS, BLOCK_H), dtype=tl.float32)
    filled = length // COLUMNS * COLUMNS
    for first in range(0, filled, COLUMNS):
        scores, v = scores_and_values(q, qkv_ptr, first, length, width, False, HEAD, BLOCK_H, COLUMNS)
        p, shrink, total, highest = weigh(scores, total, highest, score_scale)
        if seeds_ptr is not None:  # after the sum: a dropped probability stays in the denominator
            p = drop_pairs(p, keys, block * ROWS, rows[:, None], first, cols[None, :], threshold)
        context = tl.dot(p.to(v.dtype), v, context * shrink[:, None], input_precision="ieee")
    if filled < length:
        scores, v = scores_and_values(q, qkv_ptr, filled, length, width, True, HEAD, BLOCK_H, COLUMNS)
        p, shrink, total, highest = weigh(scores, total, highest, score_scale)
        if seeds_ptr is not None:
            p = drop_pairs(p, keys, block * ROWS, rows[:, None], filled, cols[None, :], threshold)
        context = tl.dot(p.to(v.dtype), v, context * shrink[:, None], input_precision="ieee")

    # Divide by the denominator, and keep its logarithm.
    context *= (dropout_scale / total)[:, None]
    offsets = (start + row).to(tl.int64)[:, None] * width + h[None, :]
    tl.store(out_ptr + offsets, context.to(out_ptr.dtype.element_ty), mask=row_mask)
    lse = tl.where(row < length, highest + tl.log2(total), float("inf"))
    tl.store(lse_ptr + head.to(tl.int64) * queries + first_query(start, sequence, ROWS) + row, lse)
