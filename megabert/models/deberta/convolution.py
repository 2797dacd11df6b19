"""The convolution next to the first layer of DeBERTa's largest models (version 2): neighbours without attention."""

# T packed tokens, D hidden, K taps

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from megabert.config.model import ModelConfig
from megabert.config.run import OpsConfig
from megabert.models.layers import LayerNorm
from megabert.ops.dropout import EMBEDDINGS, DropoutStream, dropout

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "gelu": functional.gelu,
    "gelu_new": lambda x: functional.gelu(x, approximate="tanh"),
}


class Convolution(nn.Module):
    """Convolution within each sequence, dropout, activation, residual, LayerNorm.

    It reads the embeddings, and its result is added to the first layer's output.
    """

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
        """Return LayerNorm(residual + activation(dropout(convolution of x))), of shape (T, D).

        Args:
            x_TD: Embedded tokens; beyond the ends of a sequence they count as zero.
            residual_TD: Output of the first layer.
            cu_seqlens: Int32 of shape (B + 1,), where each sequence starts.
            stream: Dropout of the micro-batch; None drops nothing.
        """
        # All taps in one matrix product: (T, K * D) with (K * D, D).
        weight_DC = self.weight.permute(0, 2, 1).flatten(1)
        out_TD = functional.linear(self._neighbours(x_TD, cu_seqlens), weight_DC, self.bias)
        out_TD = dropout(out_TD, None if stream is None else stream.site(0, EMBEDDINGS, self.dropout_prob))
        return self.LayerNorm(self.activation(out_TD), residual_TD)

    def _neighbours(self, x_TD: Tensor, cu_seqlens: Tensor) -> Tensor:
        """Concatenate each token's neighbours from left to right, itself in the middle, to shape (T, K * D)."""
        token_T = torch.arange(len(x_TD), device=cu_seqlens.device, dtype=cu_seqlens.dtype)
        sequence_T = torch.searchsorted(cu_seqlens, token_T, right=True)  # padding counts as one more sequence
        taps = []
        for offset in range(-self.reach, self.reach + 1):
            neighbour_T = token_T + offset
            # A neighbour counts if it exists and belongs to the same sequence.
            is_same_T = (neighbour_T >= 0) & (neighbour_T < len(x_TD)) & (sequence_T.roll(-offset) == sequence_T)
            # Rolled, not gathered: the gradient of a gather would be atomic sums, whose order changes from run to run.
            taps.append(x_TD.roll(-offset, 0) * is_same_T[:, None])
        return torch.cat(taps, 1)
