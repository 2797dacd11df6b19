"""What ``layer_norm`` means, in plain torch: float32, or float64 for float64 input."""

# T packed tokens, D hidden

import torch
from torch import Tensor

from megabert.ops.dropout import Dropout, keep_mask


def layer_norm_reference(
    x_TD: Tensor,
    weight_D: Tensor,
    bias_D: Tensor | None,
    *,
    eps: float,
    input_bias_D: Tensor | None = None,
    residual_TD: Tensor | None = None,
    dropout: Dropout | None = None,
) -> Tensor:
    """Return LayerNorm(residual + dropout(x + input bias)); see ``api.layer_norm``."""
    compute = torch.float64 if x_TD.dtype == torch.float64 else torch.float32
    z_TD = x_TD.to(compute)
    if input_bias_D is not None:
        z_TD = z_TD + input_bias_D.to(compute)
    if dropout is not None:
        z_TD = z_TD * keep_mask(dropout, dropout.row_keys, z_TD.shape[1]) * dropout.scale
    if residual_TD is not None:
        z_TD = z_TD + residual_TD.to(compute)
    centred_TD = z_TD - z_TD.mean(-1, keepdim=True)
    variance_T1 = centred_TD.square().mean(-1, keepdim=True)
    normal_TD = centred_TD * torch.rsqrt(variance_T1 + eps)
    y_TD = normal_TD * weight_D.to(compute)
    return (y_TD if bias_D is None else y_TD + bias_D.to(compute)).to(x_TD.dtype)


def add_layer_norm_reference(
    x_TD: Tensor,
    weight_D: Tensor,
    bias_D: Tensor | None,
    *,
    eps: float,
    residual_TD: Tensor,
    dropout: Dropout | None = None,
) -> tuple[Tensor, Tensor]:
    """Return LayerNorm(z) and z = residual + dropout(x); see ``api.add_layer_norm``."""
    compute = torch.float64 if x_TD.dtype == torch.float64 else torch.float32
    z_TD = x_TD.to(compute)
    if dropout is not None:
        z_TD = z_TD * keep_mask(dropout, dropout.row_keys, z_TD.shape[1]) * dropout.scale
    z_TD = (residual_TD.to(compute) + z_TD).to(residual_TD.dtype)
    return layer_norm_reference(z_TD, weight_D, bias_D, eps=eps).to(x_TD.dtype), z_TD
