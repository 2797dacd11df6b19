"""The convolution beside the first layer of DeBERTa's largest second versions: neighbours read without attention."""

# T packed tokens, D hidden, K taps

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from megabert.config.model import ModelConfig
from megabert.config.run import OpsConfig
from megabert.models.embeddings import LayerNorm
from megabert.ops.dropout import EMBEDDINGS, DropoutStream, dropout

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "gelu": functional.gelu,
    "gelu_new": lambda x: functional.gelu(x, approximate="tanh"),
}


class Convolution(nn.Module):
    """Convolution within each sequence, dropout, activation, residual, LayerNorm."""

    def __init__(self, config: ModelConfig, ops: OpsConfig) -> None:
        super().__init__()
        width, taps = config.hidden_size, config.conv_kernel_size or 1
        self.weight = nn.Parameter(torch.zeros(width, width, taps))
        self.bias = nn.Parameter(torch.zeros(width))
        self.LayerNorm = LayerNorm(width, eps=config.layer_norm_eps, backend=ops.layer_norm)
        self.activation = ACTIVATIONS[config.conv_act]
        self.dropout_prob = config.hidden_dropout_prob
        self.reach = taps // 2

    def forward(self, x_TD: Tensor, residual_TD: Tensor, cu_seqlens: Tensor, stream: DropoutStream | None) -> Tensor:
        """Return LayerNorm(residual + activation(dropout(convolution of x))); beyond a sequence's ends x is zero."""
        # one product of all taps: (T, K * D) with (K * D, D)
        weight_DC = self.weight.permute(0, 2, 1).flatten(1)
        out_TD = functional.linear(self._neighbours(x_TD, cu_seqlens), weight_DC, self.bias)
        out_TD = dropout(out_TD, None if stream is None else stream.site(0, EMBEDDINGS, self.dropout_prob))
        return self.LayerNorm(self.activation(out_TD), residual_TD)

    def _neighbours(self, x_TD: Tensor, cu_seqlens: Tensor) -> Tensor:
        """Return each token's neighbours side by side, itself in the middle, of shape (T, K * D)."""
        token_T = torch.arange(len(x_TD), device=cu_seqlens.device, dtype=cu_seqlens.dtype)
        sequence_T = torch.searchsorted(cu_seqlens, token_T, right=True)  # tokens past the last sequence are one more
        taps = []
        for offset in range(-self.reach, self.reach + 1):
            place_T = token_T + offset
            is_same_T = (place_T >= 0) & (place_T < len(x_TD)) & (sequence_T.roll(-offset) == sequence_T)
            # rolled, not gathered: the gradient needs no atomic sums
            taps.append(x_TD.roll(-offset, 0) * is_same_T[:, None])
        return torch.cat(taps, 1)
