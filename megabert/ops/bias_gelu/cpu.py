"""The backend of ``bias_gelu`` on torch's own GELU."""

# T packed tokens, F intermediate

from torch import Tensor
from torch.nn import functional


def bias_gelu_torch(x_TF: Tensor, bias_F: Tensor, *, approximate: bool) -> Tensor:
    """Run ``bias_gelu`` on any device; x + bias is kept in the dtype of x, for the backward pass."""
    return functional.gelu(x_TF + bias_F, approximate="tanh" if approximate else "none")
