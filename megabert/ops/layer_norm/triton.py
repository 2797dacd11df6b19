"""``layer_norm`` as Triton kernels: one pass over rows forward, one backward, nothing stored but mean and 1/std.

The backward pass rebuilds z = residual + dropout(x + input bias) from its inputs, which autograd keeps anyway, and the
dropout mask from its keys. A result that is used twice, by a dense layer and as the next residual, has two gradients,
whose sum dy is taken here. With n = (z - mean) * rstd and g = dy * weight:

    dz = rstd * (g - mean(g) - n * mean(g * n)), means over the columns of a row
    dx = scale * keep * dz, dresidual = dz
    dweight = sum(dy * n), dbias = sum(dy), dinput_bias = sum(dx), sums over tokens

Sums over tokens are taken in two steps: each program adds up its own rows, ``column_sums`` adds up programs in a fixed
order. Atomic sums would differ from run to run.
"""

# T packed tokens, D hidden, Q quantities, P programs

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from megabert.ops.dropout import Dropout, threshold_and_scale
from megabert.ops.triton_support.column_sums import column_sums
from megabert.ops.triton_support.device_functions import is_kept
from megabert.ops.triton_support.input_checks import require
from megabert.ops.triton_support.tile_sizes import LAYER_NORM_PROGRAMS, layer_norm_tiles, multiprocessors_of, split_rows


@triton.jit
def _sum_of_inputs(
    x_ptr,  # output of the dense layer, (tokens, width)
    input_bias_ptr,  # bias of the dense layer, (width,)
    residual_ptr,  # input of the sub-layer, (tokens, width)
    offsets,  # where the tile's elements are, (ROWS, COLUMNS)
    keep,  # which elements survive dropout, (ROWS, COLUMNS)
    cols,  # column numbers, (COLUMNS,)
    mask,  # which elements exist, (ROWS, COLUMNS)
    width,  # columns of a row
    scale,  # what a survivor of dropout is multiplied by
    HAS_BIAS: tl.constexpr,
    HAS_DROPOUT: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
):
    """Return z = residual + dropout(x + input bias) of one tile, in float32."""
    z = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    if HAS_BIAS:
        z += tl.load(input_bias_ptr + cols, mask=cols < width, other=0.0).to(tl.float32)[None, :]
    if HAS_DROPOUT:
        z = tl.where(keep, z * scale, 0.0)
    if HAS_RESIDUAL:
        z += tl.load(residual_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    return z


@triton.jit(do_not_specialize=["tokens"])
def layer_norm_forward(
    x_ptr,  # output of the dense layer, (tokens, width)
    weight_ptr,  # gain, (width,)
    bias_ptr,  # shift, (width,)
    input_bias_ptr,  # bias of the dense layer, (width,), or None
    residual_ptr,  # input of the sub-layer, (tokens, width), or None
    row_keys_ptr,  # keys of dropout, int32, (tokens,), or None
    y_ptr,  # result, (tokens, width)
    mean_ptr,  # mean of each row, float32, (tokens,), for the backward pass
    rstd_ptr,  # 1 / standard deviation of each row, float32, (tokens,), likewise
    tokens,  # rows
    width,  # columns of a row
    eps,  # added to the variance
    threshold,  # smallest hash that survives dropout, int32
    scale,  # what a survivor of dropout is multiplied by
    HAS_BIAS: tl.constexpr,  # whether there is a bias of the dense layer
    HAS_DROPOUT: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
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

    # What is normalised: residual + dropout(x + input bias).
    keep = mask
    if HAS_DROPOUT:
        key = tl.load(row_keys_ptr + row, mask=row < tokens, other=0)
        keep = is_kept(key[:, None], cols[None, :], threshold)
    z = _sum_of_inputs(
        x_ptr,
        input_bias_ptr,
        residual_ptr,
        offsets,
        keep,
        cols,
        mask,
        width,
        scale,
        HAS_BIAS,
        HAS_DROPOUT,
        HAS_RESIDUAL,
    )

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
    b = tl.load(bias_ptr + cols, mask=cols < width, other=0.0).to(tl.float32)
    out = centred * rstd[:, None] * w[None, :] + b[None, :]
    tl.store(y_ptr + offsets, out.to(y_ptr.dtype.element_ty), mask=mask)
    tl.store(mean_ptr + row, mean, mask=row < tokens)
    tl.store(rstd_ptr + row, rstd, mask=row < tokens)


@triton.jit(do_not_specialize=["tokens", "rows_each"])
def layer_norm_backward(
    dy_ptr,  # gradient of the result, (tokens, width)
    twin_dy_ptr,  # gradient of the result as a residual, which is added, (tokens, width), or None
    x_ptr,  # output of the dense layer, (tokens, width)
    weight_ptr,  # gain, (width,)
    input_bias_ptr,  # bias of the dense layer, (width,), or None
    residual_ptr,  # input of the sub-layer, (tokens, width), or None
    row_keys_ptr,  # keys of dropout, int32, (tokens,), or None
    mean_ptr,  # mean of each row, float32, (tokens,)
    rstd_ptr,  # 1 / standard deviation of each row, float32, (tokens,)
    dx_ptr,  # gradient of x, (tokens, width)
    dresidual_ptr,  # gradient of the residual, (tokens, width), or None
    partials_ptr,  # each program's dweight, dbias and perhaps dinput_bias, float32, (2 or 3, programs, width)
    tokens,  # rows
    width,  # columns of a row
    rows_each,  # rows of a program, a multiple of ROWS
    threshold,  # smallest hash that survives dropout, int32
    scale,  # what a survivor of dropout is multiplied by
    HAS_BIAS: tl.constexpr,  # whether there is a bias of the dense layer
    HAS_DROPOUT: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    HAS_TWIN: tl.constexpr,  # whether there are two gradients of the result
    HAS_DRESIDUAL: tl.constexpr,  # whether the residual's gradient is written; else dx is the same numbers
    IS_EXACT: tl.constexpr,  # whether COLUMNS is the width: no column needs to be masked
    STAGES: tl.constexpr,  # depth of software pipelining of the loop over rows
    ROWS: tl.constexpr,  # tokens worked on at once
    COLUMNS: tl.constexpr,  # the width, rounded up to a power of two
):
    """Differentiate ``rows_each`` rows, and add up what they contribute to the gradients of gain and biases."""
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

        # Rebuild what was normalised, with the same dropout mask as forward, and normalise it again.
        keep = mask
        if HAS_DROPOUT:
            key = tl.load(row_keys_ptr + row, mask=row < tokens, other=0)
            keep = is_kept(key[:, None], cols[None, :], threshold)
        z = _sum_of_inputs(
            x_ptr,
            input_bias_ptr,
            residual_ptr,
            offsets,
            keep,
            cols,
            mask,
            width,
            scale,
            HAS_BIAS,
            HAS_DROPOUT,
            HAS_RESIDUAL,
        )
        mean = tl.load(mean_ptr + row, mask=row < tokens, other=0.0)[:, None]
        rstd = tl.load(rstd_ptr + row, mask=row < tokens, other=0.0)[:, None]
        n = (z - mean) * rstd  # zero in rows past the end, whose rstd was loaded as zero
        if not IS_EXACT:
            n = tl.where(mask, n, 0.0)

        # Gain and shift, then the normalisation itself: dz = rstd * (g - mean(g) - n * mean(g * n)).
        grad = tl.load(dy_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
        if HAS_TWIN:
            grad += tl.load(twin_dy_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
        dweight += grad * n
        dbias += grad
        g = grad * w
        dz = rstd * (g - (tl.sum(g, axis=1) / width)[:, None] - n * (tl.sum(g * n, axis=1) / width)[:, None])

        # The residual gets dz as it is, x and the dense bias what dropout lets through.
        if HAS_DRESIDUAL:
            tl.store(dresidual_ptr + offsets, dz.to(dresidual_ptr.dtype.element_ty), mask=mask)
        if HAS_DROPOUT:
            dz = tl.where(keep, dz * scale, 0.0)
        if HAS_BIAS:
            dinput_bias += dz if IS_EXACT else tl.where(mask, dz, 0.0)
        tl.store(dx_ptr + offsets, dz.to(dx_ptr.dtype.element_ty), mask=mask)

    # One row of partial sums for each quantity; ``column_sums`` adds up the programs.
    programs = tl.num_programs(0)
    target = program * width + cols
    tl.store(partials_ptr + target, tl.sum(dweight, axis=0), mask=cols < width)
    tl.store(partials_ptr + programs * width + target, tl.sum(dbias, axis=0), mask=cols < width)
    if HAS_BIAS:
        tl.store(partials_ptr + 2 * programs * width + target, tl.sum(dinput_bias, axis=0), mask=cols < width)


class _LayerNorm(torch.autograd.Function):
    """The op on a CUDA device; everything between loads and stores is float32."""

    @staticmethod
    def forward(
        ctx: Any,
        x_TD: Tensor,
        weight_D: Tensor,
        bias_D: Tensor,
        input_bias_D: Tensor | None,
        residual_TD: Tensor | None,
        eps: float,
        dropout: Dropout | None,
    ) -> tuple[Tensor, Tensor]:
        require("layer_norm", x_TD, weight_D, bias_D, input_bias_D, residual_TD)
        x_TD = x_TD.contiguous()
        residual_TD = None if residual_TD is None else residual_TD.contiguous()
        tokens, width = x_TD.shape
        tiles, _ = layer_norm_tiles(width)
        y_TD = torch.empty_like(x_TD)
        # Two tensors and not rows of one, which would begin at an aligned address only for some numbers of tokens.
        mean_T, rstd_T = (torch.empty(tokens, dtype=torch.float32, device=x_TD.device) for _ in range(2))
        if tokens:
            layer_norm_forward[(triton.cdiv(tokens, tiles.rows),)](
                x_TD,
                weight_D,
                bias_D,
                input_bias_D,
                residual_TD,
                None if dropout is None else dropout.row_keys,
                y_TD,
                mean_T,
                rstd_T,
                tokens,
                width,
                eps,
                *threshold_and_scale(dropout),
                **_switches(input_bias_D, dropout, residual_TD),
                IS_EXACT=tiles.columns == width,
                ROWS=tiles.rows,
                COLUMNS=tiles.columns,
                num_warps=tiles.warps,
            )
        ctx.save_for_backward(x_TD, weight_D, bias_D, input_bias_D, residual_TD, mean_T, rstd_T)
        ctx.dropout = dropout
        ctx.set_materialize_grads(False)
        return y_TD, y_TD.detach()

    @staticmethod
    def backward(ctx: Any, *grads_TD: Tensor | None) -> tuple[Tensor | None, ...]:
        present = [grad_TD.contiguous() for grad_TD in grads_TD if grad_TD is not None]
        if not present:
            return (None,) * 7
        x_TD, weight_D, bias_D, input_bias_D, residual_TD, mean_T, rstd_T = ctx.saved_tensors
        dropout = ctx.dropout
        tokens, width = x_TD.shape
        _, tiles = layer_norm_tiles(width)
        dx_TD = torch.empty_like(x_TD)
        # Without dropout, and in one dtype, dx and dresidual are the same numbers: one tensor serves both.
        is_shared = residual_TD is not None and dropout is None and residual_TD.dtype == x_TD.dtype
        dresidual_TD = None if residual_TD is None or is_shared else torch.empty_like(residual_TD)
        programs, rows_each = split_rows(tokens, tiles.rows, LAYER_NORM_PROGRAMS * multiprocessors_of(x_TD.device))
        quantities = 2 if input_bias_D is None else 3
        partials_QPD = torch.empty(quantities, programs, width, dtype=torch.float32, device=x_TD.device)
        if programs:
            layer_norm_backward[(programs,)](
                present[0],
                present[1] if len(present) == 2 else None,
                x_TD,
                weight_D,
                input_bias_D,
                residual_TD,
                None if dropout is None else dropout.row_keys,
                mean_T,
                rstd_T,
                dx_TD,
                dresidual_TD,
                partials_QPD,
                tokens,
                width,
                rows_each,
                *threshold_and_scale(dropout),
                **_switches(input_bias_D, dropout, residual_TD),
                IS_EXACT=tiles.columns == width,
                HAS_TWIN=len(present) == 2,
                HAS_DRESIDUAL=dresidual_TD is not None,
                STAGES=tiles.stages,
                ROWS=tiles.rows,
                COLUMNS=tiles.columns,
                num_warps=tiles.warps,
            )
        # Gain and biases have one dtype in a model; where they do not, the sums are cast once more.
        sums_QD = column_sums(partials_QPD, weight_D.dtype if weight_D.dtype == bias_D.dtype else torch.float32)
        return (
            dx_TD,
            sums_QD[0].to(weight_D.dtype),
            sums_QD[1].to(bias_D.dtype),
            None if input_bias_D is None else sums_QD[2].to(input_bias_D.dtype),
            dx_TD if is_shared else dresidual_TD,
            None,
            None,
        )


layer_norm_triton = _LayerNorm.apply


def _switches(input_bias_D: Tensor | None, dropout: Dropout | None, residual_TD: Tensor | None) -> dict[str, bool]:
    """Return which optional inputs there are, as the kernels' constants."""
    return {
        "HAS_BIAS": input_bias_D is not None,
        "HAS_DROPOUT": dropout is not None,
        "HAS_RESIDUAL": residual_TD is not None,
    }
