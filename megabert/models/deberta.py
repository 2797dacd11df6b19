"""DeBERTa's additions to BERT (He et al. 2021): relative positions in the scores of attention (section 3.1).

A token is two vectors here, its content and its position relative to the other token. The score of two tokens is the
sum of content to content, content to position (c2p) and position to content (p2c). Position to position is left out:
where positions are relative it adds little. The largest models also have a convolution next to the first layer.
"""

# T packed tokens, D hidden, C = 3 * D, P relative positions (rows of the table), E distances, K taps

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional

from megabert.models.layers import Dense, LayerContext, LayerNorm
from megabert.ops.attention.disentangled.api import disentangled_attention
from megabert.ops.attention.disentangled.cpu import DisentangledSequences, RelativePositions
from megabert.ops.dense import embedding
from megabert.ops.dropout import EMBEDDINGS, AttentionDropout, DropoutStream, dropout
from megabert.ops.sequences import sequence_numbers
from megabert.settings.config.model import ModelConfig
from megabert.settings.config.run import OpsConfig

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "gelu": functional.gelu,
    "gelu_new": lambda x: functional.gelu(x, approximate="tanh"),
}


@dataclass(frozen=True)
class DisentangledPacking:
    """The sequences and the positions of a micro-batch for disentangled attention; the same for every layer."""

    sequences: DisentangledSequences
    """Where the sequences are, and how plain torch lays them out."""
    embedded_PD: Tensor
    """The rows of the table of relative positions that occur between tokens of this micro-batch.

    Each layer projects them with its own weights.
    """
    position_E: Tensor
    """Int32 of shape (2 * longest - 1,): the row of ``embedded_PD`` for each distance, from -(longest - 1) on."""


class RelativeEmbedding(nn.Module):
    """Embeddings of relative positions, one table for all layers (section 4.2), with or without LayerNorm.

    The authors apply dropout to the table. We do not: one mask for a whole micro-batch would depend on its packing.
    """

    def __init__(self, config: ModelConfig, ops: OpsConfig) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.zeros(2 * config.relative_span, config.hidden_size))
        self.LayerNorm = None
        if config.norm_rel_ebd == "layer_norm":
            self.LayerNorm = LayerNorm(config.hidden_size, config, ops)

    def forward(self, sequences: DisentangledSequences) -> DisentangledPacking:
        """Embed all distances that occur in the longest of some sequences."""
        config = self.config
        first, last, position_E = positions_of(
            sequences.max_seqlen,
            config.relative_span,
            config.max_distance,
            is_bucketed=config.position_buckets is not None,
            device=self.weight.device,
        )
        used_P = torch.arange(first, last + 1, device=self.weight.device)
        # A lookup copies the rows; a slice would be a view of a table that ZeRO-3 releases after this forward.
        embedded_PD = embedding(used_P, self.weight)
        if self.LayerNorm is not None:
            embedded_PD = self.LayerNorm(embedded_PD)
        return DisentangledPacking(sequences, embedded_PD, position_E)


@lru_cache
def positions_of(
    longest: int, span: int, farthest: int, *, is_bucketed: bool, device: torch.device
) -> tuple[int, int, Tensor]:
    """Return the first and the last row of the table that occur, and for each distance its row, counted from the first.

    The rows are copied to the device once for each length: the host waits for such a copy.

    Args:
        longest: Tokens of the longest sequence; distances go from -(longest - 1) to longest - 1.
        span: Half the rows of the table.
        farthest: Distance from which on all share the last position; read only if bucketed.
        is_bucketed: Whether distances beyond span / 2 share positions (the authors' second version).
        device: Where the rows are needed.
    """
    distance_E = torch.arange(1 - longest, longest, device="cpu")
    if is_bucketed:
        distance_E = _bucket(distance_E, span, farthest)
    row_E = (distance_E + span).clamp(0, 2 * span - 1)
    first, last = int(row_E[0]), int(row_E[-1])
    with torch.inference_mode(False):  # the one tensor serves training and inference
        return first, last, (row_E - first).to(torch.int32).to(device)


def _bucket(distance_E: Tensor, span: int, farthest: int) -> Tensor:
    """Keep distances up to half the span, and map those beyond logarithmically onto the other half.

    The logarithm is taken in float32, as when the published weights were trained: its rounding decides at the borders
    between buckets.
    """
    half = span // 2
    beyond_E = distance_E.abs().clamp(min=half)
    share_E = torch.log(beyond_E / half) / torch.log(torch.tensor((farthest - 1) / half))
    far_E = torch.ceil(share_E * (half - 1)) + half
    return torch.where(distance_E.abs() <= half, distance_E, (far_E * distance_E.sign()).long())


class DisentangledSelfAttention(nn.Module):
    """Queries, keys and values of contents and of relative positions, then attention within each sequence.

    The first version has biases for queries and values but not for keys, and its own projections of positions. The
    second has all biases and may project positions with the weights of the contents (``share_att_key``).
    """

    def __init__(self, config: ModelConfig, ops: OpsConfig) -> None:
        super().__init__()
        width, has_key_bias = config.hidden_size, config.traits.has_key_bias
        self.config = config
        self.qkv = Dense(width, 3 * width, bias=has_key_bias, stacked=3, heads=config.num_attention_heads)
        self.query_bias = None if has_key_bias else nn.Parameter(torch.zeros(width))
        self.value_bias = None if has_key_bias else nn.Parameter(torch.zeros(width))
        # Projections of positions, as far as the contents' own do not serve (version 2).
        own = () if config.share_att_key else config.pos_att_type
        self.position_key = Dense(width, width, bias=has_key_bias) if "c2p" in own else None
        self.position_query = Dense(width, width) if "p2c" in own else None
        self.backend = ops.attention

    def forward(
        self,
        x_TD: Tensor,
        packing: DisentangledPacking,
        site: AttentionDropout | None,
        queries_TD: Tensor | None = None,
    ) -> Tensor:
        """Return the context of each token, of shape (T, D), before the output projection.

        Args:
            x_TD: Hidden states that keys and values are made of, and queries unless they have their own.
            packing: Layout and positions of the micro-batch.
            site: Dropout of the probabilities; None drops nothing.
            queries_TD: Hidden states that queries are made of; None takes ``x_TD``.
        """
        qkv_TC = self.project_contents(x_TD)
        if queries_TD is not None:  # all three again, because ZeRO-3 has the weight within the projection only
            width = x_TD.shape[1]
            qkv_TC = torch.cat([self.project_contents(queries_TD)[:, :width], qkv_TC[:, width:]], 1)
        return disentangled_attention(
            qkv_TC,
            self.project_positions(packing),
            packing.sequences,
            num_heads=self.config.num_attention_heads,
            dropout=site,
            backend=self.backend,
        )

    def project_contents(self, x_TD: Tensor) -> Tensor:
        """Return queries, keys and values of shape (T, 3 * D)."""
        qkv_TC: Tensor = self.qkv(x_TD)
        if self.query_bias is None or self.value_bias is None:
            return qkv_TC
        return qkv_TC + torch.cat([self.query_bias, torch.zeros_like(self.query_bias), self.value_bias])

    def project_positions(self, packing: DisentangledPacking) -> RelativePositions:
        """Return keys and queries of positions; None if the model does not use their scores."""
        key_PD, query_PD = None, None
        if self.config.share_att_key:
            query_PD, key_PD, _ = self.qkv(packing.embedded_PD).chunk(3, -1)
        if self.position_key is not None:
            key_PD = self.position_key(packing.embedded_PD)
        if self.position_query is not None:
            query_PD = self.position_query(packing.embedded_PD)
        return RelativePositions(
            key_PD if "c2p" in self.config.pos_att_type else None,
            query_PD if "p2c" in self.config.pos_att_type else None,
            packing.position_E,
        )


class Convolution(nn.Module):
    """Convolution within each sequence, dropout, activation, residual, LayerNorm.

    It reads the embeddings, and its result is added to the first layer's output.
    """

    def __init__(self, config: ModelConfig, ops: OpsConfig) -> None:
        super().__init__()
        width, taps = config.hidden_size, config.conv_kernel_size or 1
        self.weight = nn.Parameter(torch.zeros(width, width, taps))
        self.bias = nn.Parameter(torch.zeros(width))
        self.LayerNorm = LayerNorm(width, config, ops)
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
        out_TD = dropout(out_TD, LayerContext(stream, 0).site(EMBEDDINGS, self.dropout_prob))
        return self.LayerNorm(self.activation(out_TD), residual_TD)

    def _neighbours(self, x_TD: Tensor, cu_seqlens: Tensor) -> Tensor:
        """Concatenate each token's neighbours from left to right, itself in the middle, to shape (T, K * D)."""
        token_T = torch.arange(len(x_TD), device=cu_seqlens.device, dtype=cu_seqlens.dtype)
        sequence_T = sequence_numbers(cu_seqlens, token_T)  # padding counts as one more sequence
        taps = []
        for offset in range(-self.reach, self.reach + 1):
            neighbour_T = token_T + offset
            # A neighbour counts if it exists and belongs to the same sequence.
            is_same_T = (neighbour_T >= 0) & (neighbour_T < len(x_TD)) & (sequence_T.roll(-offset) == sequence_T)
            # Rolled, not gathered: the gradient of a gather would be atomic sums, whose order changes from run to run.
            taps.append(x_TD.roll(-offset, 0) * is_same_T[:, None])
        return torch.cat(taps, 1)
