"""The public ``bias_gelu`` and its choice of backend."""

# T packed tokens, F intermediate

from torch import Tensor

from megabert.ops.backend import choose


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
    run = choose("bias_gelu", backend, x_TF.device.type)
    return run(x_TF, bias_F, approximate=approximate)
