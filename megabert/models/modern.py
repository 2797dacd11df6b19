"""ModernBERT's layer (Warner et al. 2024, section 2.1): LayerNorm in front, rotary positions, a local window, GeGLU.

A layer adds the outputs of attention and feed-forward to its input, so that an identity runs through all of them
(Xiong et al. 2020). Dense layers and LayerNorms have no biases. The first layer has no LayerNorm before attention,
since the embeddings end with one; after the last layer there is one more.
"""

# T packed tokens, N heads, H head width, D = N * H hidden, F intermediate, C = 2 * F

from dataclasses import dataclass

from torch import Tensor, nn

from megabert.models.layers import Dense, HiddenAndResidual, LayerContext, LayerNorm
from megabert.ops.attention.rotary.api import plan_rotary_attention, rotary_attention, turns_of
from megabert.ops.attention.rotary.cpu import RotarySequences
from megabert.ops.dropout import ATTENTION_OUTPUT, FEED_FORWARD_OUTPUT, AttentionDropout, dropout
from megabert.ops.gated_gelu.api import gated_gelu
from megabert.ops.sequences import PackedBatch
from megabert.settings.config.model import ModelConfig
from megabert.settings.config.run import OpsConfig


@dataclass(frozen=True)
class RotaryPacking:
    """The sequences of a micro-batch as ModernBERT's attention reads them; the same for every layer."""

    sequences: RotarySequences
    """Their boundaries and layout."""
    turns: dict[bool, Tensor]
    """Cosines and sines of positions in layers with global attention (True) and with local attention (False)."""


def plan_rotary(batch: PackedBatch, config: ModelConfig, ops: OpsConfig, *, global_base: float) -> RotaryPacking:
    """Work out once for all layers of a micro-batch what attention needs; the base of global attention is given."""
    sequences = plan_rotary_attention(
        batch.cu_seqlens,
        batch.position_ids_T,
        max_seqlen=batch.max_seqlen,
        num_heads=config.num_attention_heads,
        reach=config.reach,
        has_dropout=config.attention_probs_dropout_prob > 0,
        backend=ops.attention,
    )
    bases = {True: global_base, False: config.local_rope_theta}
    turns = {kind: turns_of(sequences.positions_P, base, config.head_width) for kind, base in bases.items()}
    return RotaryPacking(sequences, turns)


class RotarySelfAttention(nn.Module):
    """Queries, keys and values in one matrix product, then attention within each sequence, or nearby in it.

    Queries and keys are turned by their positions. Element e of the first half of a head and element e of the second
    half are a pair that turns.
    """

    def __init__(self, config: ModelConfig, ops: OpsConfig, *, is_global: bool) -> None:
        super().__init__()
        self.qkv = Dense(
            config.hidden_size, 3 * config.hidden_size, bias=False, stacked=3, heads=config.num_attention_heads
        )
        self.num_heads = config.num_attention_heads
        self.is_global = is_global
        self.reach = None if is_global else config.reach
        self.backend = ops.attention

    def forward(self, x_TD: Tensor, packing: RotaryPacking, site: AttentionDropout | None) -> Tensor:
        """Return the context of each token, of shape (T, D), before the output projection."""
        return rotary_attention(
            self.qkv(x_TD),
            packing.turns[self.is_global],
            packing.sequences,
            reach=self.reach,
            num_heads=self.num_heads,
            dropout=site,
            backend=self.backend,
        )


class PreNormAttention(nn.Module):
    """The first sub-layer: LayerNorm except in the first layer, attention, output projection."""

    def __init__(self, config: ModelConfig, ops: OpsConfig, *, depth: int) -> None:
        super().__init__()
        self.config = config
        self.LayerNorm = LayerNorm(config.hidden_size, config, ops) if depth else None
        self.self = RotarySelfAttention(config, ops, is_global=config.is_global(depth))
        self.output = Dense(config.hidden_size, config.hidden_size, bias=False)

    def forward(self, hidden: HiddenAndResidual, packing: RotaryPacking, context: LayerContext) -> HiddenAndResidual:
        """Return the sub-layer's output and the sum that it is to be added to, of shape (T, D) or (R, D).

        Args:
            hidden: The output of the previous layer and the sum that it is to be added to; before the first layer the
                embeddings, twice.
            packing: Where the sequences are, and positions as angles.
            context: Depth, dropout, and the tokens that are read.
        """
        normed_TD, sum_TD = hidden if self.LayerNorm is None else self.LayerNorm.add(*hidden)
        context_TD = self.self(normed_TD, packing, context.probabilities(self.config))
        return self.output(context.select(context_TD)), context.select(sum_TD)


class GatedFeedForward(nn.Module):
    """The second sub-layer: LayerNorm, then GELU of one projection times another, GeGLU (Shazeer 2020), projected back.

    The two projections are one matrix, first the rows of the projection that passes GELU.
    """

    def __init__(self, config: ModelConfig, ops: OpsConfig) -> None:
        super().__init__()
        self.config = config
        self.LayerNorm = LayerNorm(config.hidden_size, config, ops)
        self.input_and_gate = Dense(config.hidden_size, 2 * config.intermediate_size, bias=False, stacked=2)
        self.output = Dense(config.intermediate_size, config.hidden_size, bias=False)
        self.backend = ops.bias_gelu

    def forward(self, hidden: HiddenAndResidual, context: LayerContext) -> HiddenAndResidual:
        """Return the sub-layer's output and the sum that it is to be added to, both of shape (T, D).

        Args:
            hidden: Attention's output and the sum that it is to be added to.
            context: Depth and dropout: of attention's output, and before the projection back.
        """
        config = self.config
        normed_TD, sum_TD = self.LayerNorm.add(*hidden, context.site(ATTENTION_OUTPUT, config.hidden_dropout_prob))
        is_approximate = config.hidden_act == "gelu_new"
        inner_TF = gated_gelu(self.input_and_gate(normed_TD), approximate=is_approximate, backend=self.backend)
        return self.output(dropout(inner_TF, context.site(FEED_FORWARD_OUTPUT, config.mlp_dropout))), sum_TD


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

    def forward(self, hidden: HiddenAndResidual, packing: RotaryPacking, context: LayerContext) -> HiddenAndResidual:
        """Return the layer's output and the sum that it is to be added to, of shape (T, D) or (R, D).

        Args:
            hidden: The previous layer's result; before the first layer the embeddings, twice.
            packing: Where the sequences are, and positions as angles.
            context: Depth, dropout, and the tokens that are read.
        """
        # sum = sum + output;           output = attention(norm(sum))
        # sum = sum + dropout(output);  output = feed_forward(norm(sum))
        # Each addition is left to the LayerNorm that follows, which reads both in one pass.
        return self.feed_forward(self.attention(hidden, packing, context), context)
