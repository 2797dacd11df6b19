"""What ``gated_gelu`` means, in plain torch: float32, or float64 for float64 input."""

# T packed tokens, F intermediate, C = 2 * F

from torch import Tensor

from megabert.ops.bias_gelu.reference import gelu_reference


def gated_gelu_reference(x_TC: Tensor, *, approximate: bool) -> Tensor:
    """Return GELU of the first half of each row times its second half; see ``api.gated_gelu``."""
    input_TF, gate_TF = x_TC.chunk(2, -1)
    return (gelu_reference(input_TF, approximate=approximate) * gate_TF).to(x_TC.dtype)
