"""The backend of ``bias_gelu`` on torch's own GELU."""

# T packed tokens, F intermediate

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def bias_gelu_torch(x_TF: Tensor, bias_F: Tensor, *, approximate: bool) -> Tensor:
    """Run ``bias_gelu`` on any device; x + bias is kept in the dtype of x, for the backward pass."""
    return _BiasGelu.apply(x_TF, bias_F, "tanh" if approximate else "none")


class _BiasGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TF: Tensor, bias_F: Tensor, form: str) -> Tensor:
        h_TF = x_TF + bias_F
        ctx.save_for_backward(h_TF)
        ctx.form = form
        ctx.bias_dtype = bias_F.dtype
        return functional.gelu(h_TF, approximate=form)

    @staticmethod
    def backward(ctx: Any, grad_TF: Tensor) -> tuple[Tensor, Tensor, None]:
        (h_TF,) = ctx.saved_tensors
        grad_x_TF = torch.ops.aten.gelu_backward(grad_TF, h_TF, approximate=ctx.form)
        return grad_x_TF, grad_x_TF.sum(0).to(ctx.bias_dtype), None
