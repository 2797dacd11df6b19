"""The public ``layer_norm`` and its choice of backend."""

# T packed tokens, D hidden

from torch import Tensor

from megabert.ops.backend import Backend, apex_obstacle, choose, no_obstacle, triton_obstacle
from megabert.ops.dropout import Dropout
from megabert.ops.layer_norm.cpu import add_layer_norm_torch, layer_norm_torch


def layer_norm(
    x_TD: Tensor,
    weight_D: Tensor,
    bias_D: Tensor | None,
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
        bias_D: Shift of each column; None shifts none.
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
    bias_D: Tensor | None,
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


def add_layer_norm(
    x_TD: Tensor,
    weight_D: Tensor,
    bias_D: Tensor | None,
    *,
    eps: float,
    residual_TD: Tensor,
    dropout: Dropout | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Return LayerNorm(z) and z = residual + dropout(x), the start of a pre-LayerNorm sub-layer (Xiong et al. 2020).

    In one pass: the sum of the previous sub-layer is stored as it is normalised, and its two gradients are added as
    they are read. The arguments are those of ``layer_norm``.

    Returns:
        LayerNorm(z) in the dtype of ``x_TD``, and z in the dtype of ``residual_TD``, both of shape (T, D).
    """
    run = choose("layer_norm", backend, ADDING_BACKENDS, x_TD.device.type)
    twice: tuple[Tensor, Tensor] = run(x_TD, weight_D, bias_D, residual_TD, eps, dropout)
    return twice


BACKENDS = (
    Backend("triton", "megabert.ops.layer_norm.triton:layer_norm_triton", triton_obstacle),
    Backend("apex", "megabert.ops.layer_norm.apex:layer_norm_apex", apex_obstacle),
    Backend("torch", layer_norm_torch, no_obstacle),
)
ADDING_BACKENDS = (
    Backend("triton", "megabert.ops.layer_norm.triton:add_layer_norm_triton", triton_obstacle),
    Backend("apex", "megabert.ops.layer_norm.apex:add_layer_norm_apex", apex_obstacle),
    Backend("torch", add_layer_norm_torch, no_obstacle),
)
"""Those of ``add_layer_norm``."""
