"""Triton kernel of ``rotary_attention``'s forward pass, and the functions that it shares with the backward pass.

As in ``megabert.ops.attention.dense.kernels`` a program owns ROWS queries of one head and walks over keys with a
running maximum. What differs:

- Element e of a head's first half and element e of its second half are a pair that turns with the position, so a head
  is held in halves: S = Q1 K1^T + Q2 K2^T.
- A program with a window (REACH) visits only the tiles of keys that one of its queries sees, and turns queries and keys
  when it loads them. Without one every key would be turned again for each 128 queries, at 2.4 instructions per
  element of the scores; there ``rotary_turn`` writes a turned copy first (IS_TURNED).
- Programs are numbered by tiles of the packed row, not by sequence and tile of the longest one: next to one sequence of
  8,192 tokens, 63 of 64 programs of each short one would have nothing to do.

lse and delta, one number per query, have buffers in the layout of those tiles: whole tiles are written and read
without masks.
"""

# T packed tokens, B sequences, N heads, H head width, E = H / 2 pairs of a head, D = N * H, S positions

import triton
import triton.language as tl

from megabert.ops.attention.dense.kernels import bounds, dropout_keys, place_and_head, weigh, write_zeros
from megabert.ops.triton_support.device_functions import drop_pairs


@triton.jit
def tile_of(
    cu_seqlens_ptr,  # where each sequence starts, int32, (sequences + 1,)
    sequences,  # B; the padding after the last sequence counts as one more
    tokens,  # T, padding included
    tile,  # number of a tile in the packed row
    TILE: tl.constexpr,  # tokens of a tile
):
    """Return the sequence of a tile, its first token, its length, and how many of its tokens come before the tile.

    The n-th sequence, if it begins at token s, has the tiles from s // TILE + n on: enough for its length, and the last
    may be one too many. The sequence is searched by halving; the boundaries stay in the cache.
    """
    low, high = tl.cast(0, tl.int32), tl.cast(sequences, tl.int32)
    while low < high:
        middle = (low + high + 1) // 2
        is_before = tl.load(cu_seqlens_ptr + middle) // TILE + middle <= tile
        low, high = tl.where(is_before, middle, low), tl.where(is_before, high, middle - 1)
    start, length = bounds(cu_seqlens_ptr, low, sequences, tokens)
    return low, start, length, (tile - start // TILE - low) * TILE


@triton.jit
def load_turns(
    turns_ptr,  # cosines and sines, float32, (positions, 2, E)
    row,  # positions
    mask,  # which of their pairs there are
    HEAD: tl.constexpr,  # H
    BLOCK_E: tl.constexpr,  # E, rounded up to a power of two, at least 16
):
    """Return cosines and sines of the angles of some positions, each (rows, BLOCK_E)."""
    offsets = row[:, None] * HEAD + tl.arange(0, BLOCK_E)[None, :]
    cos = tl.load(turns_ptr + offsets, mask=mask, other=0.0)
    return cos, tl.load(turns_ptr + HEAD // 2 + offsets, mask=mask, other=0.0)


@triton.jit
def _turn(first, second, cos, sin):
    """Turn pairs in float32, rounded to their own dtype."""
    turned_first = first.to(tl.float32) * cos - second.to(tl.float32) * sin
    turned_second = second.to(tl.float32) * cos + first.to(tl.float32) * sin
    return turned_first.to(first.dtype), turned_second.to(first.dtype)


@triton.jit
def load_turned(
    ptr,  # queries or keys of one sequence and head
    turns_ptr,  # cosines and sines, float32, (positions, 2, E)
    row,  # which rows
    length,  # rows of the sequence; rows past its end are zeros
    stride,  # elements from one row to the next
    IS_TURNED: tl.constexpr,  # whether the rows are turned in memory
    HEAD: tl.constexpr,  # H
    BLOCK_E: tl.constexpr,  # E, rounded up to a power of two, at least 16
):
    """Return both halves of queries or keys, turned by their positions."""
    e = tl.arange(0, BLOCK_E)
    mask = (row < length)[:, None] & (e < HEAD // 2)[None, :]
    offsets = row[:, None] * stride + e[None, :]
    first = tl.load(ptr + offsets, mask=mask, other=0.0)
    second = tl.load(ptr + HEAD // 2 + offsets, mask=mask, other=0.0)
    if not IS_TURNED:
        cos, sin = load_turns(turns_ptr, row, mask, HEAD, BLOCK_E)
        first, second = _turn(first, second, cos, sin)
    return first, second


@triton.jit
def store_turned_back(
    ptr,  # gradient of queries or keys of one sequence and head
    turns_ptr,  # cosines and sines, float32, (positions, 2, E)
    first,  # gradient of the first half of turned rows
    second,  # gradient of the second half
    row,  # which rows
    length,  # rows of the sequence; rows past its end are not written
    stride,  # elements from one row to the next
    HEAD: tl.constexpr,  # H
    BLOCK_E: tl.constexpr,  # E, rounded up to a power of two, at least 16
):
    """Write the gradient of rows before they were turned: the gradient after, turned by the opposite angle."""
    e = tl.arange(0, BLOCK_E)
    mask = (row < length)[:, None] & (e < HEAD // 2)[None, :]
    offsets = row[:, None] * stride + e[None, :]
    cos, sin = load_turns(turns_ptr, row, mask, HEAD, BLOCK_E)
    tl.store(ptr + offsets, (first * cos + second * sin).to(ptr.dtype.element_ty), mask=mask)
    tl.store(ptr + HEAD // 2 + offsets, (second * cos - first * sin).to(ptr.dtype.element_ty), mask=mask)


@triton.jit
def products_of_halves(left_first, left_second, right_first, right_second):
    """Return L R^T of matrices in halves."""
    first = tl.dot(left_first, tl.trans(right_first), input_precision="ieee")
    return tl.dot(left_second, tl.trans(right_second), first, input_precision="ieee")


@triton.jit
def is_seen(row, first_col, columns, length, REACH: tl.constexpr):
    """Return which keys of a tile queries see: all of the sequence, or the ones at most REACH away if it is not 0.

    A query past the end may see any. One comparison of numbers without a sign does for both sides of a window.
    """
    if REACH:
        first_seen = row - REACH
        others = tl.minimum(2 * REACH, length - 1 - first_seen).to(tl.uint32, bitcast=True)
        seen = (first_col - first_seen + columns).to(tl.uint32, bitcast=True) <= others
    else:
        seen = first_col + columns < length
    return seen


@triton.jit
def first_key(first_row, length, REACH: tl.constexpr, COLUMNS: tl.constexpr):
    """Return where tiles of keys begin that need a mask: the first in the window, or the one past the end."""
    if REACH:
        return tl.maximum(first_row - REACH, 0) // COLUMNS * COLUMNS
    return length // COLUMNS * COLUMNS


@triton.jit
def last_key(first_row, length, REACH: tl.constexpr, ROWS: tl.constexpr):
    """Return the end of the keys that these ROWS queries can see."""
    if REACH:
        return tl.minimum(first_row + ROWS + REACH, length)
    return length


@triton.jit(do_not_specialize=["tokens", "sequences"])
def rotary_turn(
    qkv_ptr,  # queries, keys and values, (tokens, 3, heads, HEAD)
    turns_ptr,  # cosines and sines, float32, (positions, 2, E)
    cu_seqlens_ptr,  # where each sequence starts, int32, (sequences + 1,)
    turned_ptr,  # result, (tokens, 3, heads, HEAD)
    tokens,  # T, padding included
    sequences,  # B
    heads,  # N
    HEAD: tl.constexpr,  # H
    BLOCK_E: tl.constexpr,  # E, rounded up to a power of two
    ROWS: tl.constexpr,  # tokens of a program
):
    """Copy ROWS queries, keys and values of one head, queries and keys turned; padding is left as it is."""
    tile, part = place_and_head(3 * heads)
    sequence, start, length, first_row = tile_of(cu_seqlens_ptr, sequences, tokens, tile, ROWS)
    if (first_row >= length) | (sequence == sequences):
        return
    row, e = first_row + tl.arange(0, ROWS), tl.arange(0, BLOCK_E)
    mask = (row < length)[:, None] & (e < HEAD // 2)[None, :]
    offsets = (start + row).to(tl.int64)[:, None] * 3 * heads * HEAD + part * HEAD + e[None, :]
    first = tl.load(qkv_ptr + offsets, mask=mask, other=0.0)
    second = tl.load(qkv_ptr + HEAD // 2 + offsets, mask=mask, other=0.0)
    if part < 2 * heads:  # values stay
        cos, sin = load_turns(turns_ptr, row, mask, HEAD, BLOCK_E)
        first, second = _turn(first, second, cos, sin)
    tl.store(turned_ptr + offsets, first, mask=mask)
    tl.store(turned_ptr + HEAD // 2 + offsets, second, mask=mask)


@triton.jit(do_not_specialize=["tokens", "sequences"])
def rotary_attention_forward(
    qkv_ptr,  # queries, keys and values, (tokens, 3, heads, HEAD)
    turns_ptr,  # cosines and sines, float32, (positions, 2, E)
    cu_seqlens_ptr,  # where each sequence starts, int32, (sequences + 1,)
    seeds_ptr,  # dropout's seed of each sequence, int32, (sequences,), or None
    constants_ptr,  # dropout's constant of each head, int32, (heads,), or None
    out_ptr,  # contexts, (tokens, heads, HEAD)
    lse_ptr,  # log2 of the softmax's denominator, float32, (heads, tiles * ROWS), for the backward pass
    tokens,  # T, padding included
    queries,  # stride between heads in lse, in elements: tiles * ROWS
    sequences,  # B
    heads,  # N
    score_scale,  # log2(e) / sqrt(H)
    threshold,  # smallest hash that survives dropout, int32
    dropout_scale,  # factor of the survivors of dropout
    REACH: tl.constexpr,  # tokens to each side that a query sees; 0: all
    IS_TURNED: tl.constexpr,  # whether queries and keys are turned in memory
    HEAD: tl.constexpr,  # H
    BLOCK_E: tl.constexpr,  # E, rounded up to a power of two, at least 16
    BLOCK_H: tl.constexpr,  # H, rounded up to a power of two
    ROWS: tl.constexpr,  # queries of a program
    COLUMNS: tl.constexpr,  # keys read at once
):
    """Attend with ROWS queries of one head to the keys of their sequence that they see."""
    tile, head = place_and_head(heads)
    sequence, start, length, first_row = tile_of(cu_seqlens_ptr, sequences, tokens, tile, ROWS)
    width = heads * HEAD
    out_ptr += head * HEAD
    if sequence == sequences:
        write_zeros(out_ptr, start, length, first_row, tokens, width, HEAD, BLOCK_H, ROWS)
        return
    if first_row >= length:
        return

    rows = tl.arange(0, ROWS)
    row = first_row + rows
    qkv_ptr += start.to(tl.int64) * 3 * width + head * HEAD
    q_first, q_second = load_turned(qkv_ptr, turns_ptr, row, length, 3 * width, IS_TURNED, HEAD, BLOCK_E)
    if seeds_ptr is not None:
        keys = dropout_keys(seeds_ptr, constants_ptr, sequence, head)

    # The largest score begins at a finite number: a query may see no key of the first tile, and -inf - -inf is NaN.
    highest = tl.full((ROWS,), -1e30, dtype=tl.float32)
    total = tl.zeros((ROWS,), dtype=tl.float32)
    context = tl.zeros((ROWS, BLOCK_H), dtype=tl.float32)
    columns, h = tl.arange(0, COLUMNS), tl.arange(0, BLOCK_H)
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
            scores = products_of_halves(q_first, q_second, k_first, k_second)
            if is_masked:
                seen = is_seen((first_row + rows)[:, None], first_col, columns[None, :], length, REACH)
                scores = tl.where(seen, scores, float("-inf"))
            p, shrink, total, highest = weigh(scores, total, highest, score_scale)
            if seeds_ptr is not None:  # after the sum: a dropped probability stays in the denominator
                p = drop_pairs(p, keys, first_row, rows[:, None], first_col, columns[None, :], threshold)
            context = tl.dot(p.to(v.dtype), v, context * shrink[:, None], input_precision="ieee")

    # Divide by the denominator, and keep its logarithm; +inf past the end makes exp2(S - lse) zero there.
    context *= (dropout_scale / total)[:, None]
    mask = (row < length)[:, None] & (h < HEAD)[None, :]
    offsets = (start + row).to(tl.int64)[:, None] * width + h[None, :]
    tl.store(out_ptr + offsets, context.to(out_ptr.dtype.element_ty), mask=mask)
    lse = tl.where(row < length, highest + tl.log2(total), float("inf"))
    tl.store(lse_ptr + head.to(tl.int64) * queries + tile * ROWS + rows, lse)
