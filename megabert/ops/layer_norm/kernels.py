"""``layer_norm`` as Triton kernels: one pass over rows forward, one backward, nothing stored but mean and 1/std.

The backward pass rebuilds z = residual + dropout(x + input bias) from its inputs, which autograd keeps anyway, and the
dropout mask from its keys. A result that is used twice, by a dense layer and as the next residual, has two gradients,
whose sum dy is taken here. With n = (z - mean) * rstd and g = dy * weight:

    dz = rstd * (g - mean(g) - n * mean(g * n)), means over the columns of a row
    dx = scale * keep * dz, dresidual = dz
    dweight = sum(dy * n), dbias = sum(dy), dinput_bias = sum(dx), sums over tokens

A layer with LayerNorm in front (``returns_sum``) needs z as well, as its next residual. Then z is stored once, in 16
bits as it will be read, and the backward pass loads it instead of rebuilding it; its own gradient is added to dz.

Sums over tokens are taken in two steps: each program adds up its own rows, ``column_sums`` adds up programs in a fixed
order. Atomic sums would differ from run to run.
"""

import triton
import triton.language as tl

from megabert.ops.triton_support.device_functions import is_kept
from megabert.ops.triton_support.row_casts import store_row_cast


@triton.jit
def _sum_of_inputs(
    x_ptr,  # output of the dense layer, (tokens, width)
    input_bias_ptr,  # bias of the dense layer, (width,), or None
    residual_ptr,  # input of the sub-layer, (tokens, width), or None
    row_keys_ptr,  # keys of dropout, or None
    offsets,  # where the tile's elements are, (ROWS, COLUMNS)
    keep,  # which elements survive dropout, (ROWS, COLUMNS)
    cols,  # column numbers, (COLUMNS,)
    mask,  # which elements exist, (ROWS, COLUMNS)
    width,  # columns of a row
    scale,  # factor of the survivors of dropout
):
    """Return z = residual + dropout(x + input bias) of one tile, in float32."""
    z = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    if input_bias_ptr is not None:
        z += tl.load(input_bias_ptr + cols, mask=cols < width, other=0.0).to(tl.float32)[None, :]
    if row_keys_ptr is not None:
        z = tl.where(keep, z * scale, 0.0)
    if residual_ptr is not None:
        z += tl.load(residual_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    return z


@triton.jit(do_not_specialize=["tokens"])
def layer_norm_forward(
    x_ptr,  # output of the dense layer, (tokens, width)
    weight_ptr,  # gain, (width,)
    bias_ptr,  # shift, (width,), or None
    input_bias_ptr,  # bias of the dense layer, (width,), or None
    residual_ptr,  # input of the sub-layer, (tokens, width), or None
    row_keys_ptr,  # keys of dropout, int32, (tokens,), or None
    y_ptr,  # result, (tokens, width)
    z_ptr,  # the sum before normalisation, (tokens, width), or None if it is not stored
    values_ptr,  # result in 8 bits, or None if it is not cast
    scales_ptr,  # the scale of each row of it, or None
    mean_ptr,  # mean of each row, float32, (tokens,), for the backward pass
    rstd_ptr,  # 1 / standard deviation of each row, float32, (tokens,), likewise
    tokens,  # rows
    width,  # columns of a row
    eps,  # added to the variance
    threshold,  # smallest hash that survives dropout, int32
    scale,  # factor of the survivors of dropout
    IS_EXACT: tl.constexpr,  # whether COLUMNS is the width: no column needs to be masked
    ROWS: tl.constexpr,  # tokens of a program
    COLUMNS: tl.constexpr,  # the width, rounded up to a power of two
):
    """Normalise ROWS whole rows."""
    # The tile of this program: all columns of ROWS rows.
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, COLUMNS)
    mask = (row < tokens)[:, None] & (cols < width)[None, :]
    offsets = row.to(tl.int64)[:, None] * width + cols[None, :]

    # The sum to normalise: residual + dropout(x + input bias).
    keep = mask
    if row_keys_ptr is not None:
        key = tl.load(row_keys_ptr + row, mask=row < tokens, other=0)
        keep = is_kept(key[:, None], cols[None, :], threshold)
    z = _sum_of_inputs(x_ptr, input_bias_ptr, residual_ptr, row_keys_ptr, offsets, keep, cols, mask, width, scale)

    if z_ptr is not None:
        # Rounded first, so that the backward pass normalises the same numbers.
        rounded = z.to(z_ptr.dtype.element_ty)
        tl.store(z_ptr + offsets, rounded, mask=mask)
        z = rounded.to(tl.float32)

    # Mean, then variance about it, in two passes over registers: E[z^2] - mean^2 would cancel. Columns past the width
    # must count as zero in both sums.
    if not IS_EXACT:
        z = tl.where(mask, z, 0.0)
    mean = tl.sum(z, axis=1) / width
    centred = z - mean[:, None]
    if not IS_EXACT:
        centred = tl.where(mask, centred, 0.0)
    rstd = 1.0 / tl.sqrt_rn(tl.sum(centred * centred, axis=1) / width + eps)

    # Gain and shift; the statistics are kept for the backward pass.
    w = tl.load(weight_ptr + cols, mask=cols < width, other=0.0).to(tl.float32)
    out = centred * rstd[:, None] * w[None, :]
    if bias_ptr is not None:
        out += tl.load(bias_ptr + cols, mask=cols < width, other=0.0).to(tl.float32)[None, :]
    y = out.to(y_ptr.dtype.element_ty)
    tl.store(y_ptr + offsets, y, mask=mask)
    if values_ptr is not None:
        store_row_cast(y.to(tl.float32), values_ptr, scales_ptr, row, tokens, offsets, mask)
    tl.store(mean_ptr + row, mean, mask=row < tokens)
    tl.store(rstd_ptr + row, rstd, mask=row < tokens)


@triton.jit(do_not_specialize=["tokens", "rows_each"])
def layer_norm_backward(
    dy_ptr,  # gradient of the result, (tokens, width)
    twin_dy_ptr,  # gradient of the result as a residual, or of the stored sum, (tokens, width), or None
    x_ptr,  # output of the dense layer, or the stored sum, (tokens, width)
    weight_ptr,  # gain, (width,)
    input_bias_ptr,  # bias of the dense layer, (width,), or None
    residual_ptr,  # input of the sub-layer, (tokens, width), or None
    row_keys_ptr,  # keys of dropout, int32, (tokens,), or None
    mean_ptr,  # mean of each row, float32, (tokens,)
    rstd_ptr,  # 1 / standard deviation of each row, float32, (tokens,)
    dx_ptr,  # gradient of x, (tokens, width)
    dresidual_ptr,  # gradient of the residual, (tokens, width), or None if dx is the same numbers
    values_ptr,  # gradient of x in 8 bits, or None if it is not cast
    scales_ptr,  # the scale of each row of it, or None
    partials_ptr,  # each program's dweight, perhaps dbias and dinput_bias, float32, (1 to 3, programs, width)
    tokens,  # rows
    width,  # columns of a row
    rows_each,  # rows of a program, a multiple of ROWS
    threshold,  # smallest hash that survives dropout, int32
    scale,  # factor of the survivors of dropout
    HAS_SHIFT: tl.constexpr,  # whether gains come with shifts, which have a gradient
    HAS_SUM: tl.constexpr,  # whether z was stored
    IS_EXACT: tl.constexpr,  # whether COLUMNS is the width: no column needs to be masked
    STAGES: tl.constexpr,  # depth of software pipelining of the loop over rows
    ROWS: tl.constexpr,  # tokens worked on at once
    COLUMNS: tl.constexpr,  # the width, rounded up to a power of two
):
    """Differentiate ``rows_each`` rows, and add up their part of the gradients of gain and biases."""
    program = tl.program_id(0)
    cols = tl.arange(0, COLUMNS)
    w = tl.load(weight_ptr + cols, mask=cols < width, other=0.0).to(tl.float32)[None, :]
    dweight = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    dbias = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    dinput_bias = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for first in tl.range(0, rows_each, ROWS, num_stages=STAGES):
        row = program * rows_each + first + tl.arange(0, ROWS)
        mask = (row < tokens)[:, None] & (cols < width)[None, :]
        offsets = row.to(tl.int64)[:, None] * width + cols[None, :]

        # Rebuild the sum that was normalised, with the same dropout mask as forward, and normalise it again.
        keep = mask
        if row_keys_ptr is not None:
            key = tl.load(row_keys_ptr + row, mask=row < tokens, other=0)
            keep = is_kept(key[:, None], cols[None, :], threshold)
        if HAS_SUM:
            z = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
        else:
            z = _sum_of_inputs(
                x_ptr, input_bias_ptr, residual_ptr, row_keys_ptr, offsets, keep, cols, mask, width, scale
            )
        mean = tl.load(mean_ptr + row, mask=row < tokens, other=0.0)[:, None]
        rstd = tl.load(rstd_ptr + row, mask=row < tokens, other=0.0)[:, None]
        n = (z - mean) * rstd  # zero in rows past the end, whose rstd was loaded as zero
        if not IS_EXACT:
            n = tl.where(mask, n, 0.0)

        # Gain and shift, then the normalisation itself: dz = rstd * (g - mean(g) - n * mean(g * n)).
        grad = tl.load(dy_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
        twin = grad
        if twin_dy_ptr is not None:
            twin = tl.load(twin_dy_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
        if twin_dy_ptr is not None and not HAS_SUM:
            grad += twin
        dweight += grad * n
        if HAS_SHIFT:
            dbias += grad
        g = grad * w
        dz = rstd * (g - (tl.sum(g, axis=1) / width)[:, None] - n * (tl.sum(g * n, axis=1) / width)[:, None])

        if twin_dy_ptr is not None and HAS_SUM:
            dz += twin

        # The residual gets dz as it is, x and the dense bias get it where dropout keeps it.
        if dresidual_ptr is not None:
            tl.store(dresidual_ptr + offsets, dz.to(dresidual_ptr.dtype.element_ty), mask=mask)
        if row_keys_ptr is not None:
            dz = tl.where(keep, dz * scale, 0.0)
        if input_bias_ptr is not None:
            dinput_bias += dz if IS_EXACT else tl.where(mask, dz, 0.0)
        dx = dz.to(dx_ptr.dtype.element_ty)
        tl.store(dx_ptr + offsets, dx, mask=mask)
        if values_ptr is not None:
            x = dx.to(tl.float32) if IS_EXACT else tl.where(mask, dx.to(tl.float32), 0.0)
            store_row_cast(x, values_ptr, scales_ptr, row, tokens, offsets, mask)

    # One row of partial sums for each quantity; ``column_sums`` adds up the programs.
    programs = tl.num_programs(0)
    target = program * width + cols
    tl.store(partials_ptr + target, tl.sum(dweight, axis=0), mask=cols < width)
    if HAS_SHIFT:
        target += programs * width
        tl.store(partials_ptr + target, tl.sum(dbias, axis=0), mask=cols < width)
    if input_bias_ptr is not None:
        target += programs * width
        tl.store(partials_ptr + target, tl.sum(dinput_bias, axis=0), mask=cols < width)
