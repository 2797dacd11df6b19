"""``layer_norm`` with NVIDIA Apex's fused LayerNorm; the sum before it stays torch's. Untested on a real Apex."""

# T packed tokens, D hidden

import torch
from apex.normalization.fused_layer_norm import fused_layer_norm_affine
from torch import Tensor

from megabert.ops import dropout as keyed
from megabert.ops.dropout import Dropout


def layer_norm_apex(
    x_TD: Tensor,
    weight_D: Tensor,
    bias_D: Tensor | None,
    input_bias_D: Tensor | None,
    residual_TD: Tensor | None,
    eps: float,
    dropout: Dropout | None,
    returns_sum: bool = False,
) -> tuple[Tensor, Tensor]:
    """Run ``api.layer_norm`` on a CUDA device; the sum is float32 (float64 for float64)."""
    if returns_sum and residual_TD is not None:
        z_TD = residual_TD + keyed.dropout(x_TD, dropout)
        return layer_norm_apex(z_TD, weight_D, bias_D, None, None, eps, None)[0].to(x_TD.dtype), z_TD
    compute = torch.promote_types(x_TD.dtype, torch.float32)
    z_TD = x_TD.to(compute)
    if input_bias_D is not None:
        z_TD = z_TD + input_bias_D.to(compute)
    z_TD = keyed.dropout(z_TD, dropout)
    if residual_TD is not None:
        z_TD = z_TD + residual_TD.to(compute)
    shift_D = torch.zeros_like(weight_D) if bias_D is None else bias_D
    y_TD: Tensor = fused_layer_norm_affine(z_TD, weight_D.to(compute), shift_D.to(compute), z_TD.shape[-1:], eps)
    y_TD = y_TD.to(x_TD.dtype)
    return y_TD, y_TD  # autograd adds their gradients
