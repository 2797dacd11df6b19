"""``layer_norm`` as Triton kernels: one pass over rows forward, one backward, nothing stored but mean and 1/std.

The backward pass rebuilds z = residual + dropout(x + input bias) from its inputs, which autograd keeps anyway, and the
dropout mask from its keys. With n = (z - mean) * rstd and g = dy * weight:
dz = rstd * (g - mean(g) - n * mean(g * n)), dx = scale * keep * dz, dweight = sum(dy * n), dbias = sum(dy), both over
tokens, as dinput_bias = sum(dx): each program adds up its rows, ``column_sums`` adds up programs in a fixed order.
"""

# T packed tokens, D hidden, Q quantities, P programs

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from megabert.ops.dropout import Dropout
from megabert.ops.triton_support.column_sums import column_sums
from megabert.ops.triton_support.dropout_hash import is_kept
from megabert.ops.triton_support.input_checks import require
from megabert.ops.triton_support.tile_sizes import LAYER_NORM_PROGRAMS, layer_norm_tiles, multiprocessors_of, split_rows


@triton.jit
def _sum_of_inputs(
    x,
    input_bias,
    residual,
    place,
    keep,
    column,
    inside,
    width,
    scale,
    HAS_BIAS: tl.constexpr,
    HAS_DROPOUT: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
):
    z = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    if HAS_BIAS:
        z += tl.load(input_bias + column, mask=column < width, other=0.0).to(tl.float32)[None, :]
    if HAS_DROPOUT:
        z = tl.where(keep, z * scale, 0.0)
    if HAS_RESIDUAL:
        z += tl.load(residual + place, mask=inside, other=0.0).to(tl.float32)
    return z


@triton.jit
def layer_norm_forward(
    x,
    weight,
    bias,
    input_bias,
    residual,
    row_keys,
    y,
    mean,
    rstd,
    tokens,
    width,
    eps,
    threshold,
    scale,
    HAS_BIAS: tl.constexpr,
    HAS_DROPOUT: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    IS_EXACT: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Normalise ROWS tokens; ``mean`` and ``rstd`` are float32 of shape (T,)."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    inside = (row < tokens)[:, None] & (column < width)[None, :]
    place = row.to(tl.int64)[:, None] * width + column[None, :]
    keep = inside
    if HAS_DROPOUT:
        key = tl.load(row_keys + row, mask=row < tokens, other=0)
        keep = is_kept(key[:, None], column[None, :], threshold)
    z = _sum_of_inputs(
        x, input_bias, residual, place, keep, column, inside, width, scale, HAS_BIAS, HAS_DROPOUT, HAS_RESIDUAL
    )
    if not IS_EXACT:
        z = tl.where(inside, z, 0.0)
    mu = tl.sum(z, axis=1) / width
    centred = z - mu[:, None]
    if not IS_EXACT:
        centred = tl.where(inside, centred, 0.0)
    r = 1.0 / tl.sqrt_rn(tl.sum(centred * centred, axis=1) / width + eps)
    w = tl.load(weight + column, mask=column < width, other=0.0).to(tl.float32)
    b = tl.load(bias + column, mask=column < width, other=0.0).to(tl.float32)
    out = centred * r[:, None] * w[None, :] + b[None, :]
    tl.store(y + place, out.to(y.dtype.element_ty), mask=inside)
    tl.store(mean + row, mu, mask=row < tokens)
    tl.store(rstd + row, r, mask=row < tokens)


@triton.jit
def layer_norm_backward(
    dy,
    x,
    weight,
    input_bias,
    residual,
    row_keys,
    mean,
    rstd,
    dx,
    dresidual,
    partials,
    tokens,
    width,
    rows_each,
    threshold,
    scale,
    HAS_BIAS: tl.constexpr,
    HAS_DROPOUT: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    HAS_DRESIDUAL: tl.constexpr,
    IS_EXACT: tl.constexpr,
    STAGES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Differentiate ``rows_each`` tokens; ``partials`` is float32 of shape (2 or 3, programs, D)."""
    program = tl.program_id(0)
    column = tl.arange(0, COLUMNS)
    w = tl.load(weight + column, mask=column < width, other=0.0).to(tl.float32)[None, :]
    dweight = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    dbias = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    dinput_bias = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for first in tl.range(0, rows_each, ROWS, num_stages=STAGES):
        row = program * rows_each + first + tl.arange(0, ROWS)
        inside = (row < tokens)[:, None] & (column < width)[None, :]
        place = row.to(tl.int64)[:, None] * width + column[None, :]
        keep = inside
        if HAS_DROPOUT:
            key = tl.load(row_keys + row, mask=row < tokens, other=0)
            keep = is_kept(key[:, None], column[None, :], threshold)
        z = _sum_of_inputs(
            x, input_bias, residual, place, keep, column, inside, width, scale, HAS_BIAS, HAS_DROPOUT, HAS_RESIDUAL
        )
        mu = tl.load(mean + row, mask=row < tokens, other=0.0)[:, None]
        r = tl.load(rstd + row, mask=row < tokens, other=0.0)[:, None]
        n = (z - mu) * r  # zero in rows past the end, whose r was loaded as zero
        if not IS_EXACT:
            n = tl.where(inside, n, 0.0)
        grad = tl.load(dy + place, mask=inside, other=0.0).to(tl.float32)
        dweight += grad * n
        dbias += grad
        g = grad * w
        dz = r * (g - (tl.sum(g, axis=1) / width)[:, None] - n * (tl.sum(g * n, axis=1) / width)[:, None])
        if HAS_DRESIDUAL:
            tl.store(dresidual + place, dz.to(dresidual.dtype.element_ty), mask=inside)
        if HAS_DROPOUT:
            dz = tl.where(keep, dz * scale, 0.0)
        if HAS_BIAS:
            dinput_bias += dz if IS_EXACT else tl.where(inside, dz, 0.0)
        tl.store(dx + place, dz.to(dx.dtype.element_ty), mask=inside)
    programs = tl.num_programs(0)
    target = program * width + column
    tl.store(partials + target, tl.sum(dweight, axis=0), mask=column < width)
    tl.store(partials + programs * width + target, tl.sum(dbias, axis=0), mask=column < width)
    if HAS_BIAS:
        tl.store(partials + 2 * programs * width + target, tl.sum(dinput_bias, axis=0), mask=column < width)


def layer_norm_triton(
    x_TD: Tensor,
    weight_D: Tensor,
    bias_D: Tensor,
    *,
    eps: float,
    input_bias_D: Tensor | None = None,
    residual_TD: Tensor | None = None,
    dropout: Dropout | None = None,
) -> Tensor:
    """Run ``api.layer_norm`` on a CUDA device; everything between loads and stores is float32."""
    require("layer_norm", x_TD, weight_D, bias_D, input_bias_D, residual_TD)
    y_TD: Tensor = _LayerNorm.apply(x_TD, weight_D, bias_D, input_bias_D, residual_TD, eps, dropout)
    return y_TD


class _LayerNorm(torch.autograd.Function):
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
    ) -> Tensor:
        x_TD = x_TD.contiguous()
        residual_TD = None if residual_TD is None else residual_TD.contiguous()
        tokens, width = x_TD.shape
        tiles, _ = layer_norm_tiles(width)
        y_TD = torch.empty_like(x_TD)
        mean_T, rstd_T = torch.empty(2, tokens, dtype=torch.float32, device=x_TD.device)
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
                *_threshold_and_scale(dropout),
                **_switches(input_bias_D, dropout, residual_TD),
                IS_EXACT=tiles.columns == width,
                ROWS=tiles.rows,
                COLUMNS=tiles.columns,
                num_warps=tiles.warps,
            )
        ctx.save_for_backward(x_TD, weight_D, bias_D, input_bias_D, residual_TD, mean_T, rstd_T)
        ctx.dropout = dropout
        return y_TD

    @staticmethod
    def backward(ctx: Any, grad_TD: Tensor) -> tuple[Tensor | None, ...]:
        x_TD, weight_D, bias_D, input_bias_D, residual_TD, mean_T, rstd_T = ctx.saved_tensors
        dropout = ctx.dropout
        tokens, width = x_TD.shape
        _, tiles = layer_norm_tiles(width)
        dx_TD = torch.empty_like(x_TD)
        # without dropout and in one dtype the two gradients are the same numbers
        is_shared = residual_TD is not None and dropout is None and residual_TD.dtype == x_TD.dtype
        dresidual_TD = None if residual_TD is None or is_shared else torch.empty_like(residual_TD)
        programs, rows_each = split_rows(tokens, tiles.rows, LAYER_NORM_PROGRAMS * multiprocessors_of(x_TD.device))
        quantities = 2 if input_bias_D is None else 3
        partials_QPD = torch.empty(quantities, programs, width, dtype=torch.float32, device=x_TD.device)
        if programs:
            layer_norm_backward[(programs,)](
                grad_TD.contiguous(),
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
                *_threshold_and_scale(dropout),
                **_switches(input_bias_D, dropout, residual_TD),
                IS_EXACT=tiles.columns == width,
                HAS_DRESIDUAL=dresidual_TD is not None,
                STAGES=tiles.stages,
                ROWS=tiles.rows,
                COLUMNS=tiles.columns,
                num_warps=tiles.warps,
            )
        sums_QD = column_sums(partials_QPD)
        return (
            dx_TD,
            sums_QD[0].to(weight_D.dtype),
            sums_QD[1].to(bias_D.dtype),
            None if input_bias_D is None else sums_QD[2].to(input_bias_D.dtype),
            dx_TD if is_shared else dresidual_TD,
            None,
            None,
        )


def _threshold_and_scale(dropout: Dropout | None) -> tuple[int, float]:
    return (0, 1.0) if dropout is None else (dropout.threshold, dropout.scale)


def _switches(input_bias_D: Tensor | None, dropout: Dropout | None, residual_TD: Tensor | None) -> dict[str, bool]:
    return {
        "HAS_BIAS": input_bias_D is not None,
        "HAS_DROPOUT": dropout is not None,
        "HAS_RESIDUAL": residual_TD is not None,
    }
