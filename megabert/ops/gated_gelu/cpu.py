"""The backend of ``gated_gelu`` on torch's own GELU, whose result autograd keeps for the gradient of the gate."""

# T packed tokens, F intermediate, C = 2 * F

from torch import Tensor
from torch.nn import functional


def gated_gelu_torch(x_TC: Tensor, *, approximate: bool) -> Tensor:
    """Run ``gated_gelu`` on any device; 16 bits round GELU's result before it is multiplied."""
    input_TF, gate_TF = x_TC.chunk(2, -1)
    return functional.gelu(input_TF, approximate="tanh" if approximate else "none") * gate_TF
