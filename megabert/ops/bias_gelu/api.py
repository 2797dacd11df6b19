"""The public ``bias_gelu``, its choice of backend, and the backend of torch's own GELU."""

# T packed tokens, F intermediate

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from megabert.ops.backend import Backend, choose, no_obstacle, triton_obstacle


def bias_gelu(x_TF: Tensor, bias_F: Tensor, *, approximate: bool = False, backend: str = "auto") -> Tensor:
    """Return GELU(x + bias) (Hendrycks & Gimpel 2016).

    Args:
        x_TF: Output of a matrix product without its bias; float16, bfloat16, float32 or float64.
        bias_F: The bias of that matrix product.
        approximate: Whether to take the tanh form (``gelu_new``) instead of the erf form (``gelu``).
        backend: ``auto``, ``triton`` or ``torch``.

    Returns:
        Shape and dtype of ``x_TF``.

    Raises:
        KernelError: The backend cannot run here.
    """
    run = choose("bias_gelu", backend, BACKENDS, x_TF.device.type)
    return run(x_TF, bias_F, approximate=approximate)


def _bias_gelu_torch(x_TF: Tensor, bias_F: Tensor, *, approximate: bool) -> Tensor:
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


BACKENDS = (
    Backend("triton", "megabert.ops.bias_gelu.triton:bias_gelu_triton", triton_obstacle),
    Backend("torch", _bias_gelu_torch, no_obstacle),
)
