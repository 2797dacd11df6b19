"""ModernBERT's layer (Warner et al. 2024, section 2.1): LayerNorm in front, rotary positions, a local window, GeGLU.

A layer adds to its input what attention and feed-forward make of it, so that an identity runs through all of them
(Xiong et al. 2020). Dense layers and LayerNorms have no biases. The first layer has no LayerNorm before attention,
since the embeddings end with one; behind the last layer there is one more.
"""

# T packed tokens, N heads, H head width, E = H / 2 pairs of a head, D = N * H hidden, F intermediate, C = 3 * D

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from megabert.config.model import ModelConfig
from megabert.config.run import OpsConfig
from megabert.models.batch import PackedBatch
from megabert.models.layers import LayerNorm, Twice
from megabert.ops.attention.api import AttentionBlocks, attention, plan_attention
from megabert.ops.attention.dropout import AttentionDropout, attention_dropout
from megabert.ops.dropout import (
    ATTENTION_OUTPUT,
    ATTENTION_PROBABILITIES,
    FEED_FORWARD_OUTPUT,
    Dropout,
    DropoutStream,
    dropout,
)
from megabert.ops.windowed import Band, plan_band, windowed_attention

Probabilities = AttentionDropout | Dropout | None
"""Dropout of attention's probabilities: the first where attention is global, the second where it is local."""


@dataclass(frozen=True)
class Rotation:
    """Cosines and sines of the angles by which tokens turn pairs of queries and keys."""

    cos_TE: Tensor
    """Float32."""
    sin_TE: Tensor
    """Float32."""


@dataclass(frozen=True)
class RotaryPacking:
    """What ModernBERT's attention needs to know of the sequences of a micro-batch; the same for every layer."""

    cu_seqlens: Tensor
    """Int32 of shape (B + 1,), where each sequence starts."""
    max_seqlen: int
    """At least the longest length."""
    blocks: AttentionBlocks | None
    """Layout of global attention's CPU backend; None where the backend needs none."""
    band: Band
    """Which tokens see each other in layers with local attention."""
    rotations: dict[bool, Rotation]
    """The turns in layers with global attention (True) and with local attention (False)."""


def plan_rotary(batch: PackedBatch, config: ModelConfig, ops: OpsConfig) -> RotaryPacking:
    """Work out once for all layers of a micro-batch what attention needs."""
    tokens = len(batch.position_ids_T)
    return RotaryPacking(
        batch.cu_seqlens,
        batch.max_seqlen,
        plan_attention(batch.cu_seqlens, tokens=tokens, num_heads=config.num_attention_heads, backend=ops.attention),
        plan_band(batch.cu_seqlens, batch.position_ids_T, reach=config.reach),
        {
            True: rotation_of(batch.position_ids_T, config.global_rope_theta, config.head_width),
            False: rotation_of(batch.position_ids_T, config.local_rope_theta, config.head_width),
        },
    )


def rotation_of(position_ids_T: Tensor, base: float, head_width: int) -> Rotation:
    """Return the angles ``position / base ** (2 * pair / H)`` as cosines and sines (Su et al. 2021, section 3.2.2).

    Args:
        position_ids_T: Int64, position of each token in its sequence.
        base: How much slower the slowest pair turns than the first, nearly.
        head_width: H, an even number.
    """
    # In float32, step by step as when the published weights were trained.
    exponent_E = torch.arange(0, head_width, 2, dtype=torch.float32) / head_width
    speed_E = (1.0 / base**exponent_E).to(position_ids_T.device)
    angle_TE = position_ids_T.float()[:, None] * speed_E
    return Rotation(angle_TE.cos(), angle_TE.sin())


class Rotary(nn.Module):
    """Turns each pair of a query's and a key's elements by an angle that grows with the position.

    A score then depends on the distance of the two tokens alone. Element e of the first half of a head and element e of
    the second half are a pair.
    """

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads

    def forward(self, qkv_TC: Tensor, rotation: Rotation) -> Tensor:
        """Return queries, keys and values of shape (T, 3 * D) with queries and keys turned, in float32 or better."""
        parts_T3N2E = qkv_TC.unflatten(-1, (3, self.num_heads, 2, -1))
        single = torch.promote_types(qkv_TC.dtype, torch.float32)
        first_T2NE, second_T2NE = parts_T3N2E[:, :2].to(single).unbind(3)
        cos_T11E, sin_T11E = rotation.cos_TE[:, None, None], rotation.sin_TE[:, None, None]
        turned_T2N2E = torch.stack(
            [
                first_T2NE * cos_T11E - second_T2NE * sin_T11E,
                second_T2NE * cos_T11E + first_T2NE * sin_T11E,
            ],
            3,
        )
        return torch.cat([turned_T2N2E.to(qkv_TC.dtype), parts_T3N2E[:, 2:]], 1).flatten(1)


class RotarySelfAttention(nn.Module):
    """Queries, keys and values in one matrix product, turned, then attention within each sequence, or nearby in it."""

    def __init__(self, config: ModelConfig, ops: OpsConfig, *, is_global: bool) -> None:
        super().__init__()
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size, bias=False)
        self.rotary = Rotary(config.num_attention_heads)
        self.num_heads = config.num_attention_heads
        self.is_global = is_global
        self.backend = ops.attention

    def forward(self, x_TD: Tensor, packing: RotaryPacking, site: Probabilities) -> Tensor:
        """Return the context of each token, of shape (T, D), before the output projection."""
        qkv_TC = self.rotary(self.qkv(x_TD), packing.rotations[self.is_global])
        if not self.is_global:
            assert not isinstance(site, AttentionDropout)
            return windowed_attention(
                qkv_TC,
                band=packing.band,
                num_heads=self.num_heads,
                dropout=site,
                backend=self.backend,
            )
        assert not isinstance(site, Dropout)
        return attention(
            qkv_TC,
            packing.cu_seqlens,
            max_seqlen=packing.max_seqlen,
            num_heads=self.num_heads,
            dropout=site,
            blocks=packing.blocks,
            backend=self.backend,
        )


class PreNormAttention(nn.Module):
    """The first sub-layer: LayerNorm but in the first layer, attention, output projection, dropout."""

    def __init__(self, config: ModelConfig, ops: OpsConfig, *, depth: int) -> None:
        super().__init__()
        self.LayerNorm = LayerNorm(config.hidden_size, config, ops) if depth else None
        self.self = RotarySelfAttention(config, ops, is_global=config.is_global(depth))
        self.output = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

    def forward(
        self,
        x_TD: Tensor,
        packing: RotaryPacking,
        sites: tuple[Probabilities, Dropout | None],
        read_R: Tensor | None = None,
    ) -> Tensor:
        """Return what is added to the layer's input, of shape (T, D), or (R, D) where not all tokens are read."""
        probabilities_site, output_site = sites
        normed_TD = x_TD if self.LayerNorm is None else self.LayerNorm(x_TD)
        context_TD = self.self(normed_TD, packing, probabilities_site)
        if read_R is not None:
            context_TD = context_TD.index_select(0, read_R)
        return dropout(self.output(context_TD), output_site)


class GatedFeedForward(nn.Module):
    """The second sub-layer: LayerNorm, then GELU of one projection times another, GeGLU (Shazeer 2020), projected back.

    The two projections are one matrix, the one that passes GELU first.
    """

    def __init__(self, config: ModelConfig, ops: OpsConfig) -> None:
        super().__init__()
        self.LayerNorm = LayerNorm(config.hidden_size, config, ops)
        self.input_and_gate = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.output = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.approximate = "tanh" if config.hidden_act == "gelu_new" else "none"

    def forward(self, x_TD: Tensor, site: Dropout | None) -> Tensor:
        """Return what is added to the sub-layer's input, of shape (T, D)."""
        input_TF, gate_TF = self.input_and_gate(self.LayerNorm(x_TD)).chunk(2, -1)
        inner_TF = functional.gelu(input_TF, approximate=self.approximate) * gate_TF
        out_TD: Tensor = self.output(dropout(inner_TF, site))
        return out_TD


class PreNormLayer(nn.Module):
    """Attention and feed-forward, each with LayerNorm in front and added to its input.

    Args:
        config: The model's sizes.
        ops: Backends of the fused ops.
        depth: Number of the layer, from 0: it says whether attention is global, and the first has no LayerNorm before
            it.
    """

    def __init__(self, config: ModelConfig, ops: OpsConfig, *, depth: int) -> None:
        super().__init__()
        self.attention = PreNormAttention(config, ops, depth=depth)
        self.feed_forward = GatedFeedForward(config, ops)
        self.config = config
        self.is_global = config.is_global(depth)

    def forward(
        self,
        hidden: Twice,
        packing: RotaryPacking,
        stream: DropoutStream | None,
        depth: int,
        read_R: Tensor | None = None,
    ) -> Twice:
        """Return the next hidden states, of shape (T, D) or (R, D), twice.

        Args:
            hidden: Hidden states of the previous layer.
            packing: Where the sequences are, and positions as angles.
            stream: Dropout of the micro-batch; None drops nothing.
            depth: Number of the layer, from 0, which keys dropout.
            read_R: Index of the tokens whose hidden states are read; None: all.
        """
        config, probability = self.config, self.config.attention_probs_dropout_prob

        def site(name: int, probability: float, of: DropoutStream | None) -> Dropout | None:
            return None if of is None else of.site(depth, name, probability)

        probabilities: Probabilities = site(ATTENTION_PROBABILITIES, probability, stream)
        if self.is_global:
            probabilities = attention_dropout(
                stream, layer=depth, probability=probability, num_heads=config.num_attention_heads
            )
        of_read, (x_TD, residual_TD) = stream, hidden
        if read_R is not None:
            of_read = None if stream is None else stream.at(read_R)
            residual_TD = residual_TD.index_select(0, read_R)
        sites = (probabilities, site(ATTENTION_OUTPUT, config.hidden_dropout_prob, of_read))
        x_RD = residual_TD + self.attention(x_TD, packing, sites, read_R)
        x_RD = x_RD + self.feed_forward(x_RD, site(FEED_FORWARD_OUTPUT, config.mlp_dropout, of_read))
        return x_RD, x_RD
