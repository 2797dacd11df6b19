"""The public ``layer_norm`` and its choice of backend."""

# T packed tokens, D hidden

from torch import Tensor

from megabert.ops.backend import choose
from megabert.ops.dropout import Dropout


def layer_norm(
    x_TD: Tensor,
    weight_D: Tensor,
    bias_D: Tensor | None,
    *,
    eps: float,
    input_bias_D: Tensor | None = None,
    residual_TD: Tensor | None = None,
    dropout: Dropout | None = None,
    returns_sum: bool = False,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Return LayerNorm(z) of z = residual + dropout(x + input bias), for the next dense layer, and the next residual.

    LayerNorm is Ba et al. 2016; dropout and residual are in the order of Vaswani et al. 2017, section 5.4. A layer that
    ends with LayerNorm takes LayerNorm(z) as the next residual; if it begins with it, z (Xiong et al. 2020).
    Both results have a gradient of their own, and the backward pass adds the two while it reads them. If autograd added
    the gradients of one tensor that is used twice, it would read two tensors and write one, only to read it again.

    Args:
        x_TD: Output of a matrix product without its bias; float16, bfloat16, float32 or float64.
        weight_D: Gain of each column.
        bias_D: Shift of each column; None shifts none.
        eps: Added to the variance, so that a constant row is not divided by zero.
        input_bias_D: Bias of that matrix product; None adds none.
        residual_TD: Added after dropout; None adds none.
        dropout: Dropout of x + input bias, with row keys of shape (T,); None drops nothing.
        returns_sum: Whether the second result is z. It needs a residual, and takes no input bias.
        backend: ``auto``, ``triton``, ``apex`` or ``torch``.

    Returns:
        LayerNorm(z) in the dtype of ``x_TD``; and the same tensor again, or z in the dtype of ``residual_TD``. Both are
        of shape (T, D). Sums and statistics are taken in float32 (float64 for float64).

    Raises:
        KernelError: The backend cannot run here.
    """
    run = choose("layer_norm", backend, x_TD.device.type)
    return run(x_TD, weight_D, bias_D, input_bias_D, residual_TD, eps, dropout, returns_sum)
