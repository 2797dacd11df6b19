"""The public ``layer_norm``, its choice of backend, and the backend of torch's own fused LayerNorm."""

# T packed tokens, D hidden

import functools
from typing import Any

import torch
from torch import Tensor

from megabert.ops import dropout as keyed
from megabert.ops.backend import Backend, apex_obstacle, choose, no_obstacle, triton_obstacle
from megabert.ops.dropout import Dropout


def layer_norm(
    x_TD: Tensor,
    weight_D: Tensor,
    bias_D: Tensor,
    *,
    eps: float,
    input_bias_D: Tensor | None = None,
    residual_TD: Tensor | None = None,
    dropout: Dropout | None = None,
    backend: str = "auto",
) -> Tensor:
    """Return LayerNorm(residual + dropout(x + input bias)), the end of each post-LayerNorm sub-layer.

    LayerNorm is Ba et al. 2016; dropout and residual are in the order of Vaswani et al. 2017, section 5.4.

    Args:
        x_TD: Output of a matrix product without its bias; float16, bfloat16, float32 or float64.
        weight_D: Gain of each column.
        bias_D: Shift of each column.
        eps: Added to the variance, so that a constant row is not divided by zero.
        input_bias_D: Bias of that matrix product; None adds none.
        residual_TD: Added after dropout; None adds none.
        dropout: Dropout of x + input bias, with row keys of shape (T,); None drops nothing.
        backend: ``auto``, ``triton``, ``apex`` or ``torch``.

    Returns:
        Shape (T, D) in the dtype of ``x_TD``; sums and statistics are taken in float32 (float64 for float64).

    Raises:
        KernelError: The backend cannot run here.
    """
    return layer_norm_twice(
        x_TD,
        weight_D,
        bias_D,
        eps=eps,
        input_bias_D=input_bias_D,
        residual_TD=residual_TD,
        dropout=dropout,
        backend=backend,
    )[0]


def layer_norm_twice(
    x_TD: Tensor,
    weight_D: Tensor,
    bias_D: Tensor,
    *,
    eps: float,
    input_bias_D: Tensor | None = None,
    residual_TD: Tensor | None = None,
    dropout: Dropout | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Return what ``layer_norm`` does, as two tensors in the same memory: for a dense layer, and for the residual.

    Each has a gradient of its own, and the backward pass adds the two while it reads them. Of one tensor that is used
    twice autograd would add them beforehand: read two tensors, write one, only to read it again.
    """
    run = choose("layer_norm", backend, BACKENDS, x_TD.device.type)
    twice: tuple[Tensor, Tensor] = run(x_TD, weight_D, bias_D, input_bias_D, residual_TD, eps, dropout)
    return twice


class _LayerNorm(torch.autograd.Function):
    """The torch backend, for any device; 16-bit input is summed and normalised in float32.

    For the backward pass one tensor is kept, the sum that was normalised; the dropout mask is computed again there.
    """

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
        # Statistics and normalisation are one call of torch's; the sum before them is the one tensor that is kept.
        z_TD = _sum(x_TD, input_bias_D, residual_TD, dropout)
        shape = z_TD.shape[-1:]
        y_TD, mean_T1, rstd_T1 = torch.native_layer_norm(
            z_TD, shape, weight_D.to(z_TD.dtype), bias_D.to(z_TD.dtype), eps
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
            bias_D.to(z_TD.dtype),
            [True, True, True],
        )
        # The residual gets the gradient as it is, x what dropout lets through.
        grad_x_TD = grad_z_TD
        if ctx.dropout is not None:
            grad_x_TD = keyed.masked(grad_z_TD, ctx.dropout).mul_(ctx.dropout.scale)
        return (
            grad_x_TD.to(x_dtype),
            grad_weight_D.to(weight_D.dtype),
            grad_bias_D.to(bias_D.dtype),
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


BACKENDS = (
    Backend("triton", "megabert.ops.layer_norm.triton:layer_norm_triton", triton_obstacle),
    Backend("apex", "megabert.ops.layer_norm.apex:layer_norm_apex", apex_obstacle),
    Backend("torch", _LayerNorm.apply, no_obstacle),
)
