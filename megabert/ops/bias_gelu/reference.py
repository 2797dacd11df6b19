"""What ``bias_gelu`` means, in plain torch: float32, or float64 for float64 input."""

# T packed tokens, F intermediate

import math

import torch
from torch import Tensor


def bias_gelu_reference(x_TF: Tensor, bias_F: Tensor, *, approximate: bool) -> Tensor:
    """Return GELU(x + bias); see ``api.bias_gelu``."""
    compute = torch.float64 if x_TF.dtype == torch.float64 else torch.float32
    h_TF = x_TF.to(compute) + bias_F.to(compute)
    if approximate:
        inner_TF = math.sqrt(2 / math.pi) * (h_TF + 0.044715 * h_TF**3)
        y_TF = 0.5 * h_TF * (1 + torch.tanh(inner_TF))
    else:
        y_TF = 0.5 * h_TF * (1 + torch.erf(h_TF / math.sqrt(2)))
    return y_TF.to(x_TF.dtype)
