"""What DeBERTa has in place of BERT's self-attention (He et al. 2021, section 3.1): relative positions in the scores.

A token is two vectors here, its content and its position relative to the other token. The score of two tokens is the
sum of content to content, content to position (c2p) and position to content (p2c). Position to position is left out:
where positions are relative it adds little.
"""

# T packed tokens, D hidden, C = 3 * D, P relative positions (rows of the table), E distances

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional

from megabert.config.model import ModelConfig
from megabert.config.run import OpsConfig
from megabert.models.layers import LayerNorm
from megabert.ops.disentangled import Groups, RelativePositions, disentangled_attention
from megabert.ops.dropout import Dropout


@dataclass(frozen=True)
class EmbeddedPositions:
    """Embedded relative positions of one micro-batch, the same for every layer."""

    embedded_PD: Tensor
    """The rows of the table that occur between tokens of this micro-batch."""
    position_E: Tensor
    """Int64 of shape (2 * longest - 1,): the row of ``embedded_PD`` for each distance, from -(longest - 1) on."""


@dataclass(frozen=True)
class DisentangledPacking:
    """What disentangled attention needs to know of the sequences of a micro-batch; the same for every layer."""

    groups: Groups
    """How tokens are laid out for batched products."""
    relative: EmbeddedPositions
    """Relative positions, which each layer projects with its own weights."""


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
            self.LayerNorm = LayerNorm(config.hidden_size, eps=config.layer_norm_eps, backend=ops.layer_norm)

    def forward(self, longest: int) -> EmbeddedPositions:
        """Embed all distances that occur in a sequence of ``longest`` tokens."""
        config = self.config
        first, last, position_E = positions_of(
            longest, config.relative_span, config.max_distance, is_bucketed=config.position_buckets is not None
        )
        used_P = torch.arange(first, last + 1, device=self.weight.device)
        # A lookup copies the rows; a slice would be a view of a table that ZeRO-3 releases after this forward.
        embedded_PD = functional.embedding(used_P, self.weight)
        if self.LayerNorm is not None:
            embedded_PD = self.LayerNorm(embedded_PD)
        return EmbeddedPositions(embedded_PD, position_E.to(self.weight.device))


@lru_cache
def positions_of(longest: int, span: int, farthest: int, *, is_bucketed: bool) -> tuple[int, int, Tensor]:
    """Return the first and the last row of the table that occur, and for each distance its row, counted from the first.

    Args:
        longest: Tokens of the longest sequence; distances go from -(longest - 1) to longest - 1.
        span: Half the rows of the table.
        farthest: Distance from which on all share the last position; read only if bucketed.
        is_bucketed: Whether distances beyond span / 2 share positions (the authors' second version).
    """
    distance_E = torch.arange(1 - longest, longest)
    if is_bucketed:
        distance_E = _bucket(distance_E, span, farthest)
    row_E = (distance_E + span).clamp(0, 2 * span - 1)
    first, last = int(row_E[0]), int(row_E[-1])
    return first, last, row_E - first


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
        self.qkv = nn.Linear(width, 3 * width, bias=has_key_bias)
        self.query_bias = None if has_key_bias else nn.Parameter(torch.zeros(width))
        self.value_bias = None if has_key_bias else nn.Parameter(torch.zeros(width))
        own = () if config.share_att_key else config.pos_att_type
        self.position_key = nn.Linear(width, width, bias=has_key_bias) if "c2p" in own else None
        self.position_query = nn.Linear(width, width) if "p2c" in own else None
        self.backend = ops.attention

    def forward(self, x_TD: Tensor, packing: DisentangledPacking, site: Dropout | None) -> Tensor:
        """Return the context of each token, of shape (T, D), before the output projection."""
        return disentangled_attention(
            self.project_contents(x_TD),
            self.project_positions(packing.relative),
            groups=packing.groups,
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

    def project_positions(self, relative: EmbeddedPositions) -> RelativePositions:
        """Return keys and queries of positions; those whose scores the model does not add up are None."""
        key_PD, query_PD = None, None
        if self.config.share_att_key:
            query_PD, key_PD, _ = self.qkv(relative.embedded_PD).chunk(3, -1)
        if self.position_key is not None:
            key_PD = self.position_key(relative.embedded_PD)
        if self.position_query is not None:
            query_PD = self.position_query(relative.embedded_PD)
        return RelativePositions(
            key_PD if "c2p" in self.config.pos_att_type else None,
            query_PD if "p2c" in self.config.pos_att_type else None,
            relative.position_E,
        )
