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
    returns_sum: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return LayerNorm(z) of z = residual + dropout(x + input bias) twice, or it and z; see ``api.layer_norm``."""
    compute = torch.float64 if x_TD.dtype == torch.float64 else torch.float32
    z_TD = x_TD.to(compute)
    if input_bias_D is not None:
        z_TD = z_TD + input_bias_D.to(compute)
    if dropout is not None:
        z_TD = z_TD * keep_mask(dropout, dropout.row_keys, z_TD.shape[1]) * dropout.scale
    if residual_TD is not None:
        z_TD = residual_TD.to(compute) + z_TD
    if returns_sum and residual_TD is not None:  # rounded as the next layer reads it
        z_TD = z_TD.to(residual_TD.dtype)
    centred_TD = z_TD.to(compute) - z_TD.to(compute).mean(-1, keepdim=True)
    variance_T1 = centred_TD.square().mean(-1, keepdim=True)
    y_TD = centred_TD * torch.rsqrt(variance_T1 + eps) * weight_D.to(compute)
    y_TD = (y_TD if bias_D is None else y_TD + bias_D.to(compute)).to(x_TD.dtype)
    return y_TD, z_TD if returns_sum else y_TD
