"""The layers that every part of the model is built from: LayerNorm, with and without a residual, and GELU.

Two of them own the bias of the dense layer before them, because one fused op adds the bias and does the rest. The bias
cannot stay in the dense layer: ZeRO-3 gathers a parameter in the forward of the module that owns it and nowhere else.
"""

# T packed tokens, D hidden, F intermediate

import torch
from torch import Tensor, nn

from megabert.ops.bias_gelu import bias_gelu
from megabert.ops.dropout import Dropout
from megabert.ops.layer_norm import layer_norm


class LayerNorm(nn.Module):
    """LayerNorm (Ba et al. 2016) of one tensor, or of its sum with a residual.

    Args:
        width: Size of the last dimension.
        eps: Added to the variance.
        backend: Backend of the op ``layer_norm``.
    """

    def __init__(self, width: int, *, eps: float, backend: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.eps = eps
        self.backend = backend

    def forward(self, x_TD: Tensor, residual_TD: Tensor | None = None) -> Tensor:
        """Return LayerNorm(residual + x), of shape (T, D)."""
        return layer_norm(x_TD, self.weight, self.bias, eps=self.eps, residual_TD=residual_TD, backend=self.backend)


class ResidualLayerNorm(LayerNorm):
    """The end of a post-LayerNorm sub-layer: dense bias, dropout, residual and LayerNorm in one op."""

    def __init__(self, width: int, *, eps: float, backend: str) -> None:
        super().__init__(width, eps=eps, backend=backend)
        self.dense_bias = nn.Parameter(torch.zeros(width))

    def forward(self, x_TD: Tensor, residual_TD: Tensor | None = None, site: Dropout | None = None) -> Tensor:
        """Return LayerNorm(residual + dropout(x + dense bias)), of shape (T, D).

        Args:
            x_TD: Output of the dense layer, without its bias.
            residual_TD: Input of the sub-layer.
            site: Dropout of the sub-layer's output; None drops nothing.
        """
        return layer_norm(
            x_TD,
            self.weight,
            self.bias,
            eps=self.eps,
            input_bias_D=self.dense_bias,
            residual_TD=residual_TD,
            dropout=site,
            backend=self.backend,
        )


class BiasGelu(nn.Module):
    """GELU (Hendrycks & Gimpel 2016) with the bias of the dense layer before it.

    Args:
        width: Size of the last dimension.
        hidden_act: ``gelu`` (erf form) or ``gelu_new`` (tanh form), as in Hugging Face's ``config.json``.
        backend: Backend of the op ``bias_gelu``.
    """

    def __init__(self, width: int, *, hidden_act: str, backend: str) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(width))
        self.approximate = hidden_act == "gelu_new"
        self.backend = backend

    def forward(self, x_TF: Tensor) -> Tensor:
        """Return GELU(x + bias), of the shape of ``x_TF``."""
        return bias_gelu(x_TF, self.bias, approximate=self.approximate, backend=self.backend)
