"""Triton kernels of ``attention``'s backward pass.

With P = exp2(S - lse), A = keep * P, c = dropout scale, everything transposed (keys by queries) so that two of five
products take their left side from registers:

    dV = c A^T dO, dP = dO V^T, dS = A * dP - P * delta, dQ = c dS K / sqrt(H), dK = c dS^T Q / sqrt(H),
    delta = rowsum(A * dP)

A program takes COLUMNS keys at a time and walks over all queries. Its share of the keys depends on length and grid:

- IS_WHOLE: COLUMNS are all keys of a head, so delta and dQ are complete in one tile.
- IS_RUNNING: one program per sequence and head takes tile after tile, and the sum of dQ so far waits in float32 scratch
  of its own, 128 KiB for 512 queries, which stays in the cache. For grids that fill the card this way, and for
  sequences above LONGEST_IN_PARTS. With MEMORY_ADDS the first tile stores dQ, each further one has the memory add to
  it, four numbers an instruction (sm_90 and newer), and a last pass rounds; otherwise the program reads the sum, adds
  and writes it. Atomic additions repeat if their order is fixed: one program makes all additions to an address, and
  each tile waits for the one before at a barrier.
- Else a program takes one tile and writes its part of dQ to float32 scratch; ``attention_sum_tiles`` adds up the parts
  in the order of tiles. The sums equal IS_RUNNING's, bit for bit (but that memory takes subnormal numbers for zero).

The gradient of the bias is the sum of dQ, dK and dV over tokens. With IS_WHOLE a program sums its own dK and dV while
it has them, and ``column_sums`` adds up programs. dQ is complete in the inner loop, where registers are at their limit:
its sum is read from memory, a third of the bytes. In tiles the same spills; there the last pass of MEMORY_ADDS reads dK
and dV once more, from the cache, and sums all three, and without it nothing is summed.

Without IS_WHOLE, delta = rowsum(dO * O) / c comes from ``attention_delta``.
"""

# T packed tokens, B sequences, N heads, H head width, D = N * H, K key tiles

import triton
import triton.language as tl

from megabert.ops.attention.dense.kernels import bounds, dropout_keys, first_query, place_and_head, write_zeros
from megabert.ops.triton_support.device_functions import drop_pairs, exp2, prefetch


@triton.jit(do_not_specialize=["tokens", "sequences", "blocks"])
def attention_delta(
    out_ptr,  # contexts, (tokens, heads, HEAD)
    dout_ptr,  # their gradient, (tokens, heads, HEAD)
    cu_seqlens_ptr,  # where each sequence starts, int32, (sequences + 1,)
    delta_ptr,  # result, float32, (heads, queries)
    tokens,  # T, padding included
    sequences,  # B
    heads,  # N
    blocks,  # blocks of ROWS queries in the longest sequence
    queries,  # stride between heads in lse and delta, in elements
    inverse_scale,  # 1 / dropout scale
    HEAD: tl.constexpr,  # H
    BLOCK_H: tl.constexpr,  # H, rounded up to a power of two
    ROWS: tl.constexpr,  # queries of a program, the padding of a sequence
):
    """Write delta = rowsum(dO * O) / c of ROWS queries of one head, for the backward pass in key tiles."""
    place, head = place_and_head(heads)
    block = place % blocks
    sequence = place // blocks
    start, length = bounds(cu_seqlens_ptr, sequence, sequences, tokens)
    if block * ROWS >= length:
        return
    row = block * ROWS + tl.arange(0, ROWS)
    h = tl.arange(0, BLOCK_H)
    mask = (row < length)[:, None] & (h < HEAD)[None, :]
    offsets = ((start + row).to(tl.int64)[:, None] * heads + head) * HEAD + h[None, :]
    o = tl.load(out_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    do = tl.load(dout_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    delta = tl.sum(o * do, axis=1) * inverse_scale
    tl.store(delta_ptr + head.to(tl.int64) * queries + first_query(start, sequence, ROWS) + row, delta)


@triton.jit
def _store_bias_sums(
    bias_ptr,  # this program's sums of dK over tokens, float32, (HEAD,); the sums of dV are ``sequences`` rows later
    sequences,  # programs of a head
    width,  # D
    dk,  # this program's, (BLOCK_H,)
    dv,  # likewise
    HEAD: tl.constexpr,  # H
    BLOCK_H: tl.constexpr,  # H, rounded up to a power of two
):
    """Store one program's part of the gradient of the bias."""
    h = tl.arange(0, BLOCK_H)
    tl.store(bias_ptr + h, dk, mask=h < HEAD)
    tl.store(bias_ptr + sequences * width + h, dv, mask=h < HEAD)


@triton.jit
def _differentiate_tile(
    pointers,  # the pointers of ``attention_backward``, moved to one sequence and head
    first_col,  # first key of the tile
    length,  # tokens of the sequence
    width,  # D
    sequences,  # B
    keys,  # keys of dropout, or None
    scales,  # the factors of ``attention_backward``, and its threshold
    IS_WHOLE: tl.constexpr,  # whether COLUMNS keys are all keys of the longest sequence
    IS_RUNNING: tl.constexpr,  # whether the same program takes the tiles before and after
    MEMORY_ADDS: tl.constexpr,  # whether it adds to dQ in memory then, without a read
    LOADS_AHEAD: tl.constexpr,  # whether the loop loads tiles ahead: Triton's num_stages is above 1
    HEAD: tl.constexpr,  # H
    BLOCK_H: tl.constexpr,  # H, rounded up to a power of two
    ROWS: tl.constexpr,  # queries read at once
    COLUMNS: tl.constexpr,  # keys of the tile
):
    """Differentiate by COLUMNS keys and values, and add their part of the gradient of the queries."""
    qkv_ptr, dout_ptr, lse_ptr, delta_ptr, dqkv_ptr, sums_ptr, bias_ptr = pointers
    score_scale, gradient_scale, threshold, dropout_scale = scales
    h = tl.arange(0, BLOCK_H)
    rows, columns = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    cols = first_col + columns

    # Keys and values are loaded once, and their gradients are summed up in registers. Past the end, scores are taken
    # of the last key again: with a key of zeros, 2^(0 - lse) could be infinite. Its value is zero there, and in dQ the
    # key is, so dS does not matter.
    offsets = tl.minimum(cols, length - 1)[:, None] * 3 * width + h[None, :]
    any_k = tl.load(qkv_ptr + width + offsets, mask=(h < HEAD)[None, :], other=0.0)
    col_offsets = cols[:, None] * 3 * width + h[None, :]
    col_mask = (cols < length)[:, None] & (h < HEAD)[None, :]
    k = tl.load(qkv_ptr + width + col_offsets, mask=col_mask, other=0.0)
    v = tl.load(qkv_ptr + 2 * width + col_offsets, mask=col_mask, other=0.0)
    if IS_RUNNING:  # the next tile's
        following = tl.minimum(cols + COLUMNS, length - 1) * 3 * width
        prefetch(qkv_ptr + width + following)
        prefetch(qkv_ptr + 2 * width + following)
    # A copy ahead has the layout of its offsets. In the layout of the scores each thread would make 8 copies of lse and
    # 8 of delta; the compiler cannot give a sum that layout, and then one is enough.
    once = tl.sum(rows[:, None], axis=1) if LOADS_AHEAD else rows
    dk = tl.zeros((COLUMNS, BLOCK_H), dtype=tl.float32)
    dv = tl.zeros((COLUMNS, BLOCK_H), dtype=tl.float32)
    for first in range(0, length, ROWS):
        row = first + rows
        row_mask = (row < length)[:, None] & (h < HEAD)[None, :]
        q = tl.load(qkv_ptr + row[:, None] * 3 * width + h[None, :], mask=row_mask, other=0.0)
        do = tl.load(dout_ptr + row[:, None] * width + h[None, :], mask=row_mask, other=0.0)

        # P again, as (keys, queries); zero for queries past the end, whose lse is +inf. A is what forward multiplied
        # the values by, but for the scale.
        log_total = tl.load(lse_ptr + first + once)
        p = exp2(tl.dot(any_k, tl.trans(q), input_precision="ieee") * score_scale - log_total[None, :])
        a = p
        if keys is not None:
            a = drop_pairs(p, keys, first, rows[None, :], first_col, columns[:, None], threshold)
        dp = tl.dot(v, tl.trans(do), input_precision="ieee")
        dv = tl.dot(a.to(do.dtype), do, dv, input_precision="ieee")

        # Through the softmax, then the products with queries and keys.
        delta = tl.sum(a * dp, axis=0) if IS_WHOLE else tl.load(delta_ptr + first + once)
        ds = (a * dp - p * delta[None, :]).to(q.dtype)
        dk = tl.dot(ds, q, dk, input_precision="ieee")
        dq = tl.dot(tl.trans(ds), k, input_precision="ieee")

        dq_ptr = dqkv_ptr + row[:, None] * 3 * width + h[None, :]
        sum_ptr = sums_ptr + row[:, None] * width + h[None, :]
        if IS_WHOLE:
            tl.store(dq_ptr, (dq * gradient_scale).to(dqkv_ptr.dtype.element_ty), mask=row_mask)
        elif MEMORY_ADDS:
            tl.store(sum_ptr, dq, mask=row_mask & (first_col == 0))
            tl.atomic_add(sum_ptr, dq, mask=row_mask & (first_col > 0), sem="relaxed")
        elif IS_RUNNING:
            is_complete = first_col + COLUMNS >= length
            dq += tl.load(sum_ptr, mask=row_mask & (first_col > 0), other=0.0)
            tl.store(sum_ptr, dq, mask=row_mask & (not is_complete))
            tl.store(dq_ptr, (dq * gradient_scale).to(dqkv_ptr.dtype.element_ty), mask=row_mask & is_complete)
        else:
            tl.store(sum_ptr, dq, mask=row_mask)
    dk = (dk * gradient_scale).to(dqkv_ptr.dtype.element_ty)
    dv = (dv * dropout_scale).to(dqkv_ptr.dtype.element_ty)
    tl.store(dqkv_ptr + width + col_offsets, dk, mask=col_mask)
    tl.store(dqkv_ptr + 2 * width + col_offsets, dv, mask=col_mask)
    if bias_ptr is not None and not MEMORY_ADDS:
        dk_sum = tl.sum(tl.where(col_mask, dk, 0.0).to(tl.float32), axis=0)
        dv_sum = tl.sum(tl.where(col_mask, dv, 0.0).to(tl.float32), axis=0)
        _store_bias_sums(bias_ptr, sequences, width, dk_sum, dv_sum, HEAD, BLOCK_H)


@triton.jit
def _round_and_sum(
    sums_ptr,  # dQ of one sequence and head but for the scale, float32
    dqkv_ptr,  # gradients of its queries, keys and values; the queries' are written here
    bias_ptr,  # their sums over tokens, float32, (3, sequences, heads, HEAD), moved to this program's; or None
    length,  # tokens of the sequence
    width,  # D
    sequences,  # B
    gradient_scale,  # dropout scale / sqrt(H)
    HEAD: tl.constexpr,  # H
    BLOCK_H: tl.constexpr,  # H, rounded up to a power of two
    ROWS: tl.constexpr,  # queries read at once
):
    """Write the queries' gradients, which are complete now, and sum all three over tokens for the bias."""
    h = tl.arange(0, BLOCK_H)
    dq_sum = tl.zeros((ROWS, BLOCK_H), dtype=tl.float32)
    dk_sum, dv_sum = tl.zeros_like(dq_sum), tl.zeros_like(dq_sum)
    for first in range(0, length, ROWS):
        row = first + tl.arange(0, ROWS)
        mask = (row < length)[:, None] & (h < HEAD)[None, :]
        dq = tl.load(sums_ptr + row[:, None] * width + h[None, :], mask=mask, other=0.0, cache_modifier=".cg")
        dq = (dq * gradient_scale).to(dqkv_ptr.dtype.element_ty)
        dq_ptr = dqkv_ptr + row[:, None] * 3 * width + h[None, :]
        tl.store(dq_ptr, dq, mask=mask)
        if bias_ptr is not None:
            dq_sum += dq
            dk_sum += tl.load(dq_ptr + width, mask=mask, other=0.0)
            dv_sum += tl.load(dq_ptr + 2 * width, mask=mask, other=0.0)
    if bias_ptr is not None:
        tl.store(bias_ptr + h, tl.sum(dq_sum, axis=0), mask=h < HEAD)
        dk_sum, dv_sum = tl.sum(dk_sum, axis=0), tl.sum(dv_sum, axis=0)
        _store_bias_sums(bias_ptr + sequences * width, sequences, width, dk_sum, dv_sum, HEAD, BLOCK_H)


@triton.jit(do_not_specialize=["tokens", "sequences"])
def attention_backward(
    qkv_ptr,  # queries, keys and values, (tokens, 3, heads, HEAD)
    dout_ptr,  # gradient of the contexts, (tokens, heads, HEAD)
    cu_seqlens_ptr,  # where each sequence starts, int32, (sequences + 1,)
    seeds_ptr,  # dropout's seed of each sequence, int32, (sequences,), or None
    constants_ptr,  # dropout's constant of each head, int32, (heads,), or None
    lse_ptr,  # log2 of the softmax's denominator, float32, (heads, queries)
    delta_ptr,  # rowsum(A * dP), float32, (heads, queries); not read if IS_WHOLE
    dqkv_ptr,  # gradients of queries, keys and values, (tokens, 3, heads, HEAD)
    sums_ptr,  # scratch for dQ, float32, (tiles, tokens, heads, HEAD); not read if IS_WHOLE
    bias_ptr,  # zeros for sums of dK and dV, or dQ, dK and dV, float32, (2 or 3, sequences, heads, HEAD); or None
    tokens,  # T, padding included
    sequences,  # B
    heads,  # N
    queries,  # stride between heads in lse and delta, in elements
    tiles,  # programs per sequence: tiles of COLUMNS keys in the longest one, 1 if IS_RUNNING
    score_scale,  # log2(e) / sqrt(H)
    gradient_scale,  # dropout scale / sqrt(H)
    threshold,  # smallest hash that survives dropout, int32
    dropout_scale,  # factor of the survivors of dropout
    IS_WHOLE: tl.constexpr,  # whether COLUMNS keys are all keys of the longest sequence
    IS_RUNNING: tl.constexpr,  # whether a program takes all tiles of its sequence
    MEMORY_ADDS: tl.constexpr,  # whether it adds to dQ in memory then, without a read
    LOADS_AHEAD: tl.constexpr,  # whether the loop loads tiles ahead: Triton's num_stages is above 1
    HEAD: tl.constexpr,  # H
    BLOCK_H: tl.constexpr,  # H, rounded up to a power of two
    ROWS: tl.constexpr,  # queries read at once
    COLUMNS: tl.constexpr,  # keys and values of a tile
    PADDING: tl.constexpr,  # room after each sequence in ``lse`` and ``delta``, a multiple of ROWS
):
    """Differentiate by one tile of keys and values of one head, or by all of them, tile after tile."""
    # Which keys of which sequence: programs are numbered sequence by sequence.
    place, head = place_and_head(heads)
    tile = place % tiles
    sequence = place // tiles
    width = heads * HEAD
    start, length = bounds(cu_seqlens_ptr, sequence, sequences, tokens)
    keys = None
    if seeds_ptr is not None:  # before the branches, which wait for the length
        keys = dropout_keys(seeds_ptr, constants_ptr, sequence, head, sequence < sequences)
    dqkv_ptr += head * HEAD
    if sequence == sequences:
        write_zeros(dqkv_ptr, start, length, tile * ROWS, tiles * ROWS, 3 * width, HEAD, BLOCK_H, ROWS)
        write_zeros(dqkv_ptr + width, start, length, tile * ROWS, tiles * ROWS, 3 * width, HEAD, BLOCK_H, ROWS)
        write_zeros(dqkv_ptr + 2 * width, start, length, tile * ROWS, tiles * ROWS, 3 * width, HEAD, BLOCK_H, ROWS)
        return
    if bias_ptr is not None:
        bias_ptr += place * width + head * HEAD
    if tile * COLUMNS >= length:
        return

    # Move every pointer to this sequence and head; from here on rows and columns count within the sequence.
    qkv_ptr += start.to(tl.int64) * 3 * width + head * HEAD
    dqkv_ptr += start.to(tl.int64) * 3 * width
    dout_ptr += start.to(tl.int64) * width + head * HEAD
    sums_ptr += (tile.to(tl.int64) * tokens + start) * width + head * HEAD
    first = head.to(tl.int64) * queries + first_query(start, sequence, PADDING)
    lse_ptr += first
    delta_ptr += first

    # The loop's copies of queries are issued once keys and values have arrived; until then the cache fetches them.
    row = tl.minimum(tl.arange(0, COLUMNS), length - 1)
    prefetch(qkv_ptr + row * 3 * width)
    prefetch(dout_ptr + row * width)
    prefetch(lse_ptr + row)
    if not IS_WHOLE:
        prefetch(delta_ptr + row)
    pointers = (qkv_ptr, dout_ptr, lse_ptr, delta_ptr, dqkv_ptr, sums_ptr, bias_ptr)
    scales = (score_scale, gradient_scale, threshold, dropout_scale)
    if IS_RUNNING:
        for first_col in range(0, length, COLUMNS):
            # A tile may begin only when all threads have written the sums that it reads or adds to.
            tl.debug_barrier()
            _differentiate_tile(
                pointers, first_col, length, width, sequences, keys, scales,
                IS_WHOLE, IS_RUNNING, MEMORY_ADDS, LOADS_AHEAD, HEAD, BLOCK_H, ROWS, COLUMNS,
            )  # fmt: skip
        if MEMORY_ADDS:
            tl.debug_barrier()
            _round_and_sum(
                sums_ptr, dqkv_ptr, bias_ptr, length, width, sequences, gradient_scale, HEAD, BLOCK_H, ROWS,
            )  # fmt: skip
    else:
        _differentiate_tile(
            pointers, tile * COLUMNS, length, width, sequences, keys, scales,
            IS_WHOLE, IS_RUNNING, MEMORY_ADDS, LOADS_AHEAD, HEAD, BLOCK_H, ROWS, COLUMNS,
        )  # fmt: skip


@triton.jit(do_not_specialize=["tokens", "blocks"])
def attention_sum_tiles(
    partials_ptr,  # each key tile's part of dQ, float32, (tiles, tokens, width)
    cu_seqlens_ptr,  # where each sequence starts, int32, (sequences + 1,)
    dqkv_ptr,  # gradients of queries, keys and values, (tokens, 3, width)
    tokens,  # T, padding included
    width,  # D
    blocks,  # blocks of ROWS tokens in the longest sequence
    gradient_scale,  # dropout scale / sqrt(H)
    TILE: tl.constexpr,  # keys of a tile
    ROWS: tl.constexpr,  # tokens of a program
    COLUMNS: tl.constexpr,  # columns of a program
):
    """Add up the parts of dQ of one sequence, ROWS tokens of COLUMNS columns, in the order of key tiles."""
    block = tl.program_id(0) % blocks
    sequence = tl.program_id(0) // blocks
    start = tl.load(cu_seqlens_ptr + sequence)
    length = tl.load(cu_seqlens_ptr + sequence + 1) - start
    if block * ROWS >= length:
        return
    row = block * ROWS + tl.arange(0, ROWS)
    cols = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = (row < length)[:, None] & (cols < width)[None, :]
    offsets = (start + row).to(tl.int64)[:, None] * width + cols[None, :]
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for tile in range(0, (length + TILE - 1) // TILE):
        total += tl.load(partials_ptr + tl.cast(tile, tl.int64) * tokens * width + offsets, mask=mask, other=0.0)
    target = (start + row).to(tl.int64)[:, None] * 3 * width + cols[None, :]
    tl.store(dqkv_ptr + target, (total * gradient_scale).to(dqkv_ptr.dtype.element_ty), mask=mask)
