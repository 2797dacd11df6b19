"""The backend of ``layer_norm`` on torch's own fused LayerNorm."""

# T packed tokens, D hidden

import torch
from torch import Tensor
from torch.nn import functional

from megabert.ops import dropout as keyed
from megabert.ops.dropout import Dropout


def layer_norm_torch(
    x_TD: Tensor,
    weight_D: Tensor,
    bias_D: Tensor | None,
    input_bias_D: Tensor | None,
    residual_TD: Tensor | None,
    eps: float,
    dropout: Dropout | None,
    returns_sum: bool = False,
) -> tuple[Tensor, Tensor]:
    """Run ``api.layer_norm`` on any device; 16-bit input is summed and normalised in float32.

    For the backward pass one tensor is kept, the sum that was normalised; the dropout mask is computed again there.
    """
    dtype = torch.promote_types(x_TD.dtype, torch.float32)
    if returns_sum and residual_TD is not None:
        z_TD = sum_TD = residual_TD + keyed.dropout(x_TD, dropout)
    else:
        z_TD = _sum(x_TD.to(dtype), input_bias_D, residual_TD, dropout)
        sum_TD = None
    bias_D = None if bias_D is None else bias_D.to(dtype)
    y_TD = functional.layer_norm(z_TD.to(dtype), z_TD.shape[-1:], weight_D.to(dtype), bias_D, eps)
    # Twice the conversion of one result: in 16 bits its two gradients are added up in float32.
    return y_TD.to(x_TD.dtype), y_TD.to(x_TD.dtype) if sum_TD is None else sum_TD


def _sum(z_TD: Tensor, input_bias_D: Tensor | None, residual_TD: Tensor | None, dropout: Dropout | None) -> Tensor:
    """Return residual + dropout(z + input bias) in the dtype of ``z_TD``."""
    if input_bias_D is not None:
        z_TD = z_TD + input_bias_D.to(z_TD.dtype)
    scale = 1.0
    if dropout is not None:
        # Survivors are scaled in the pass that adds the residual.
        z_TD, scale = keyed.survivors(z_TD, dropout), dropout.scale
    if residual_TD is not None:
        return torch.add(residual_TD.to(z_TD.dtype), z_TD, alpha=scale)
    return z_TD if dropout is None else z_TD * scale
