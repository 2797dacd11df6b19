"""The public ``gated_gelu`` and its choice of backend."""

# T packed tokens, F intermediate, C = 2 * F

from torch import Tensor

from megabert.ops.backend import choose


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
    run = choose("gated_gelu", backend, x_TC.device.type)
    return run(x_TC, approximate=approximate)
