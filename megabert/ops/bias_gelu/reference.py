"""What ``bias_gelu`` means, in plain torch: float32, or float64 for float64 input."""

# T packed tokens, F intermediate

import math

import torch
from torch import Tensor


def bias_gelu_reference(x_TF: Tensor, bias_F: Tensor, *, approximate: bool) -> Tensor:
    """Return GELU(x + bias); see ``api.bias_gelu``."""
    compute = torch.promote_types(x_TF.dtype, torch.float32)
    return gelu_reference(x_TF.to(compute) + bias_F.to(compute), approximate=approximate).to(x_TF.dtype)


def gelu_reference(h_TF: Tensor, *, approximate: bool) -> Tensor:
    """Return GELU(h) in float32, or float64 for float64 input."""
    h_TF = h_TF.to(torch.promote_types(h_TF.dtype, torch.float32))
    if approximate:
        inner_TF = math.sqrt(2 / math.pi) * (h_TF + 0.044715 * h_TF**3)
        return 0.5 * h_TF * (1 + torch.tanh(inner_TF))
    return 0.5 * h_TF * (1 + torch.erf(h_TF / math.sqrt(2)))
