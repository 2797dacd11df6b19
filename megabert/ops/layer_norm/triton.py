"""``layer_norm`` on a GPU: launches of the kernels, and the tensors that autograd keeps between them."""

# T packed tokens, D hidden, Q quantities, P programs

from typing import Any

import torch
import triton
from torch import Tensor

from megabert.ops import fp8
from megabert.ops.dropout import Dropout, threshold_and_scale
from megabert.ops.layer_norm.kernels import layer_norm_backward, layer_norm_forward
from megabert.ops.triton_support.column_sums import column_sums
from megabert.ops.triton_support.input_checks import require
from megabert.ops.triton_support.row_casts import room_for_cast
from megabert.ops.triton_support.tile_sizes import LAYER_NORM_PROGRAMS, layer_norm_tiles, multiprocessors_of, split_rows


class _LayerNorm(torch.autograd.Function):
    """Returns the result twice, or with the sum; everything between loads and stores is float32."""

    @staticmethod
    def forward(
        ctx: Any,
        x_TD: Tensor,
        weight_D: Tensor,
        bias_D: Tensor | None,
        input_bias_D: Tensor | None,
        residual_TD: Tensor | None,
        eps: float,
        dropout: Dropout | None,
        returns_sum: bool,
    ) -> tuple[Tensor, Tensor]:
        require("layer_norm", x_TD, weight_D, bias_D, input_bias_D, residual_TD)
        product = fp8.product_before(x_TD)
        x_TD = x_TD.contiguous()
        residual_TD = None if residual_TD is None else residual_TD.contiguous()
        tokens, width = x_TD.shape
        tiles, _ = layer_norm_tiles(width)
        y_TD = torch.empty_like(x_TD)
        z_TD = torch.empty_like(x_TD if residual_TD is None else residual_TD) if returns_sum else None
        cast = room_for_cast(y_TD) if product else None
        # Two tensors and not rows of one, which would begin at an aligned address only for some numbers of tokens.
        mean_T, rstd_T = (torch.empty(tokens, dtype=torch.float32, device=x_TD.device) for _ in range(2))
        if tokens:
            inputs = (x_TD, weight_D, bias_D, input_bias_D, residual_TD, None if dropout is None else dropout.row_keys)
            numbers = (tokens, width, eps, *threshold_and_scale(dropout))
            layer_norm_forward[(triton.cdiv(tokens, tiles.rows),)](
                *(*inputs, y_TD, z_TD, *(cast or (None, None)), mean_T, rstd_T, *numbers),
                IS_EXACT=tiles.columns == width,
                **tiles.options,
            )
        if cast:
            fp8.leave(ctx, cast)
        # A stored sum stands for the inputs that it was made from; of these only the dtypes are needed.
        ctx.residual_dtype = None if residual_TD is None else residual_TD.dtype
        kept_x_TD, kept_residual_TD = (x_TD, residual_TD) if z_TD is None else (z_TD, None)
        ctx.save_for_backward(kept_x_TD, weight_D, bias_D, input_bias_D, kept_residual_TD, mean_T, rstd_T)
        ctx.dropout, ctx.x_dtype, ctx.has_sum, ctx.product = dropout, x_TD.dtype, returns_sum, product
        ctx.set_materialize_grads(False)
        return y_TD, y_TD.detach() if z_TD is None else z_TD

    @staticmethod
    def backward(ctx: Any, *grads_TD: Tensor | None) -> tuple[Tensor | None, ...]:
        grad_TD, twin_TD = (None if gradient is None else gradient.contiguous() for gradient in grads_TD)
        if grad_TD is None and not ctx.has_sum:
            grad_TD, twin_TD = twin_TD, None
        if grad_TD is None and twin_TD is None:
            return (None,) * 8
        x_TD, weight_D, bias_D, input_bias_D, residual_TD, mean_T, rstd_T = ctx.saved_tensors
        if grad_TD is None:  # the sum alone was used
            grad_TD = torch.zeros_like(x_TD)
        dropout = ctx.dropout
        tokens, width = x_TD.shape
        _, tiles = layer_norm_tiles(width)
        dx_TD = torch.empty_like(x_TD, dtype=ctx.x_dtype)
        # Without dropout, and in one dtype, dx and dresidual are the same numbers: one tensor serves both.
        has_residual = ctx.residual_dtype is not None
        is_shared = has_residual and dropout is None and ctx.residual_dtype == ctx.x_dtype
        dresidual_TD = torch.empty_like(x_TD, dtype=ctx.residual_dtype) if has_residual and not is_shared else None
        cast = room_for_cast(dx_TD) if ctx.product else None
        programs, rows_each = split_rows(tokens, tiles.rows, LAYER_NORM_PROGRAMS * multiprocessors_of(x_TD.device))
        quantities = 1 + (bias_D is not None) + (input_bias_D is not None)
        partials_QPD = torch.empty(quantities, programs, width, dtype=torch.float32, device=x_TD.device)
        if programs:
            row_keys_T = None if dropout is None else dropout.row_keys
            inputs = (grad_TD, twin_TD, x_TD, weight_D, input_bias_D, residual_TD, row_keys_T, mean_T, rstd_T)
            layer_norm_backward[(programs,)](
                *inputs,
                *(dx_TD, dresidual_TD, *(cast or (None, None)), partials_QPD),
                *(tokens, width, rows_each, *threshold_and_scale(dropout)),
                HAS_SHIFT=bias_D is not None,
                HAS_SUM=ctx.has_sum,
                IS_EXACT=tiles.columns == width,
                STAGES=tiles.stages,
                **tiles.options,
            )
        if cast:
            fp8.leave(ctx.product, cast, dx_TD)
        # Gain and biases have one dtype in a model; if they do not, the sums are cast once more.
        parameters = [parameter for parameter in (weight_D, bias_D, input_bias_D) if parameter is not None]
        dtypes = {parameter.dtype for parameter in parameters[:2]}
        sums = iter(column_sums(partials_QPD, weight_D.dtype if len(dtypes) == 1 else torch.float32))
        dweight_D, dbias_D, dinput_bias_D = (
            None if parameter is None else next(sums).to(parameter.dtype)
            for parameter in (weight_D, bias_D, input_bias_D)
        )
        dresidual_TD = dx_TD if is_shared else dresidual_TD
        return dx_TD, dweight_D, dbias_D, dinput_bias_D, dresidual_TD, None, None, None


layer_norm_triton = _LayerNorm.apply
"""Run ``api.layer_norm`` on a CUDA device; takes the arguments of ``forward`` above."""
