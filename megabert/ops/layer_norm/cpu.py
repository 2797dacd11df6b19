"""The backend of ``layer_norm`` on torch's own fused LayerNorm."""

# T packed tokens, D hidden

import functools
from typing import Any

import torch
from torch import Tensor

from megabert.ops import dropout as keyed
from megabert.ops.dropout import Dropout


class _LayerNorm(torch.autograd.Function):
    """The torch backend, for any device; 16-bit input is summed and normalised in float32.

    For the backward pass one tensor is kept, the sum that was normalised; the dropout mask is computed again there.
    """

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
    ) -> tuple[Tensor, Tensor]:
        # Statistics and normalisation are one call of torch's; the sum before them is the one tensor that is kept.
        z_TD = _sum(x_TD, input_bias_D, residual_TD, dropout)
        shape = z_TD.shape[-1:]
        y_TD, mean_T1, rstd_T1 = torch.native_layer_norm(
            z_TD, shape, weight_D.to(z_TD.dtype), None if bias_D is None else bias_D.to(z_TD.dtype), eps
        )
        ctx.save_for_backward(z_TD, mean_T1, rstd_T1, weight_D, bias_D)
        ctx.dropout = dropout
        ctx.dtypes = (x_TD.dtype, *(None if t is None else t.dtype for t in (input_bias_D, residual_TD)))
        ctx.set_materialize_grads(False)
        y_TD = y_TD.to(x_TD.dtype)
        return y_TD, y_TD.detach()

    @staticmethod
    def backward(ctx: Any, *grads_TD: Tensor | None) -> tuple[Tensor | None, ...]:
        present = [grad_TD for grad_TD in grads_TD if grad_TD is not None]
        if not present:
            return (None,) * 7
        z_TD, mean_T1, rstd_T1, weight_D, bias_D = ctx.saved_tensors
        x_dtype, input_bias_dtype, residual_dtype = ctx.dtypes
        grad_z_TD, grad_weight_D, grad_bias_D = torch.ops.aten.native_layer_norm_backward(
            functools.reduce(torch.add, (grad_TD.to(z_TD.dtype) for grad_TD in present)).contiguous(),
            z_TD,
            z_TD.shape[-1:],
            mean_T1,
            rstd_T1,
            weight_D.to(z_TD.dtype),
            None if bias_D is None else bias_D.to(z_TD.dtype),
            [True, True, bias_D is not None],
        )
        # The residual gets the gradient as it is, x what dropout lets through.
        grad_x_TD = grad_z_TD
        if ctx.dropout is not None:
            grad_x_TD = keyed.masked(grad_z_TD, ctx.dropout).mul_(ctx.dropout.scale)
        return (
            grad_x_TD.to(x_dtype),
            grad_weight_D.to(weight_D.dtype),
            None if bias_D is None else grad_bias_D.to(bias_D.dtype),
            None if input_bias_dtype is None else grad_x_TD.sum(0).to(input_bias_dtype),
            None if residual_dtype is None else grad_z_TD.to(residual_dtype),
            None,
            None,
        )


def _sum(x_TD: Tensor, input_bias_D: Tensor | None, residual_TD: Tensor | None, dropout: Dropout | None) -> Tensor:
    """Return residual + dropout(x + input bias) in float32 (float64 for float64), always a new tensor or ``x_TD``."""
    dtype = torch.promote_types(x_TD.dtype, torch.float32)
    z_TD = x_TD.to(dtype).contiguous()
    if input_bias_D is not None:
        z_TD = z_TD + input_bias_D.to(dtype)
    if dropout is not None:
        # Survivors are scaled in the pass that adds the residual.
        z_TD = keyed.masked(z_TD, dropout)
        if residual_TD is None:
            return z_TD.mul_(dropout.scale)
        return torch.add(residual_TD.to(dtype), z_TD, alpha=dropout.scale, out=z_TD)
    return z_TD if residual_TD is None else z_TD + residual_TD.to(dtype)


def layer_norm_torch(
    x_TD: Tensor,
    weight_D: Tensor,
    bias_D: Tensor | None,
    input_bias_D: Tensor | None,
    residual_TD: Tensor | None,
    eps: float,
    dropout: Dropout | None,
    returns_sum: bool = False,
) -> tuple[Tensor, Tensor]:
    """Run ``api.layer_norm``; a sum that is returned is a step of its own, and autograd adds its two gradients."""
    if not returns_sum or residual_TD is None:
        return _LayerNorm.apply(x_TD, weight_D, bias_D, input_bias_D, residual_TD, eps, dropout)
    z_TD = residual_TD + keyed.dropout(x_TD, dropout)
    return _LayerNorm.apply(z_TD, weight_D, bias_D, None, None, eps, None)[0].to(x_TD.dtype), z_TD
