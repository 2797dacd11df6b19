"""The public ``gated_gelu`` and its choice of backend."""

# T packed tokens, F intermediate, C = 2 * F

from torch import Tensor

from megabert.ops.backend import Backend, choose, no_obstacle, triton_obstacle
from megabert.ops.gated_gelu.cpu import gated_gelu_torch


def gated_gelu(x_TC: Tensor, *, approximate: bool = False, backend: str = "auto") -> Tensor:
    """Return GELU of the first half of each row times its second half: GeGLU (Shazeer 2020).

    Args:
        x_TC: Both projections of each token, of shape (T, 2 * F); float16, bfloat16, float32 or float64.
        approximate: Whether to take the tanh form (``gelu_new``) instead of the erf form (``gelu``).
        backend: ``auto``, ``triton`` or ``torch``; the setting is ``ops.bias_gelu``.

    Returns:
        Shape (T, F) in the dtype of ``x_TC``.

    Raises:
        KernelError: The backend cannot run here.
    """
    run = choose("bias_gelu", backend, BACKENDS, x_TC.device.type)
    return run(x_TC, approximate=approximate)


BACKENDS = (
    Backend("triton", "megabert.ops.gated_gelu.triton:gated_gelu_triton", triton_obstacle),
    Backend("torch", gated_gelu_torch, no_obstacle),
)
