"""What DeBERTa has in place of BERT's self-attention (He et al. 2021): relative positions, and scores with them."""

# T packed tokens, D hidden, C = 3 * D, P relative positions, E distances

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional

from megabert.config.model import ModelConfig
from megabert.config.run import OpsConfig
from megabert.models.batch import Packing
from megabert.models.embeddings import LayerNorm
from megabert.ops.disentangled import RelativePositions, disentangled_attention
from megabert.ops.dropout import Dropout


@dataclass(frozen=True)
class EmbeddedPositions:
    """Embedded relative positions of one micro-batch, the same for every layer."""

    embedded_PD: Tensor
    """Of the distances that occur."""
    position_E: Tensor
    """As ``RelativePositions`` has it."""


class RelativeEmbedding(nn.Module):
    """Embeddings of relative positions, one table for all layers (section 4.2), with or without LayerNorm.

    The table is not dropped out, as the authors' is: one mask for a whole micro-batch would depend on its packing.
    """

    def __init__(self, config: ModelConfig, ops: OpsConfig) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.zeros(2 * config.relative_span, config.hidden_size))
        self.LayerNorm = None
        if config.norm_rel_ebd == "layer_norm":
            self.LayerNorm = LayerNorm(config.hidden_size, eps=config.layer_norm_eps, backend=ops.layer_norm)

    def forward(self, longest: int) -> EmbeddedPositions:
        """Return the positions of all distances within a sequence of so many tokens."""
        config = self.config
        first, last, position_E = positions_of(
            longest, config.relative_span, config.max_distance, is_bucketed=config.position_buckets is not None
        )
        used_P = torch.arange(first, last + 1, device=self.weight.device)
        # a lookup, not a slice: ZeRO-3 takes the table itself away at the end of this forward
        embedded_PD = functional.embedding(used_P, self.weight)
        if self.LayerNorm is not None:
            embedded_PD = self.LayerNorm(embedded_PD)
        return EmbeddedPositions(embedded_PD, position_E.to(self.weight.device))


@lru_cache
def positions_of(longest: int, span: int, farthest: int, *, is_bucketed: bool) -> tuple[int, int, Tensor]:
    """Return first and last row of the table that occur, and the row, from the first on, of each distance.

    Args:
        longest: Tokens of the longest sequence; distances go from -(longest - 1) to longest - 1.
        span: Half the rows of the table.
        farthest: Distance from which on there is but one position, if bucketed.
        is_bucketed: Whether distances beyond span / 2 share positions (the authors' version 2).
    """
    distance_E = torch.arange(1 - longest, longest)
    if is_bucketed:
        distance_E = _bucket(distance_E, span, farthest)
    row_E = (distance_E + span).clamp(0, 2 * span - 1)
    first, last = int(row_E[0]), int(row_E[-1])
    return first, last, row_E - first


def _bucket(distance_E: Tensor, span: int, farthest: int) -> Tensor:
    """Keep distances up to half the span, and map those beyond logarithmically onto the other half.

    In float32, as the published weights were trained: at the border of a bucket its rounding decides.
    """
    half = span // 2
    beyond_E = distance_E.abs().clamp(min=half)
    share_E = torch.log(beyond_E / half) / torch.log(torch.tensor((farthest - 1) / half))
    far_E = torch.ceil(share_E * (half - 1)) + half
    return torch.where(distance_E.abs() <= half, distance_E, (far_E * distance_E.sign()).long())


class DisentangledSelfAttention(nn.Module):
    """Queries, keys and values of contents and of relative positions, then attention within each sequence."""

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

    def forward(self, x_TD: Tensor, packing: Packing, site: Dropout | None) -> Tensor:
        """Return the context of each token, of shape (T, D), before the output projection."""
        return disentangled_attention(
            self.project_contents(x_TD),
            self.project_positions(packing.relative),
            groups=packing.plan,
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
        """Return keys and queries of positions, in the second version by the weights of the contents."""
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
