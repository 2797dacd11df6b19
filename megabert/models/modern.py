"""ModernBERT's layer (Warner et al. 2024, section 2.1): LayerNorm in front, rotary positions, a local window, GeGLU.

A layer adds to its input what attention and feed-forward make of it, so that an identity runs through all of them
(Xiong et al. 2020). Dense layers and LayerNorms have no biases. The first layer has no LayerNorm before attention,
since the embeddings end with one; behind the last layer there is one more.
"""

# T packed tokens, N heads, H head width, D = N * H hidden, F intermediate, C = 2 * F

from dataclasses import dataclass

from torch import Tensor, nn

from megabert.config.model import ModelConfig
from megabert.config.run import OpsConfig
from megabert.models.layers import Dense, LayerNorm, PackedBatch, Twice
from megabert.ops.attention.dropout import AttentionDropout, attention_dropout
from megabert.ops.attention.rotary.api import plan_rotary_attention, rotary_attention, turns_of
from megabert.ops.attention.rotary.cpu import RotarySequences
from megabert.ops.dropout import ATTENTION_OUTPUT, FEED_FORWARD_OUTPUT, Dropout, DropoutStream, dropout
from megabert.ops.gated_gelu.api import gated_gelu


@dataclass(frozen=True)
class RotaryPacking:
    """What ModernBERT's attention needs to know of the sequences of a micro-batch; the same for every layer."""

    sequences: RotarySequences
    """Where they are."""
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
        self.qkv = Dense(config.hidden_size, 3 * config.hidden_size, bias=False)
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
        self.LayerNorm = LayerNorm(config.hidden_size, config, ops) if depth else None
        self.self = RotarySelfAttention(config, ops, is_global=config.is_global(depth))
        self.output = Dense(config.hidden_size, config.hidden_size, bias=False)

    def forward(
        self, hidden: Twice, packing: RotaryPacking, site: AttentionDropout | None, read_R: Tensor | None = None
    ) -> Twice:
        """Return the sub-layer's output and the sum that it is to be added to, of shape (T, D) or (R, D).

        Args:
            hidden: The output of the previous layer and the sum that it is to be added to; before the first layer the
                embeddings, twice.
            packing: Where the sequences are, and positions as angles.
            site: Dropout of the probabilities; None drops nothing.
            read_R: Index of the tokens whose hidden states are read; None: all.
        """
        normed_TD, sum_TD = hidden if self.LayerNorm is None else self.LayerNorm.add(*hidden, None)
        context_TD = self.self(normed_TD, packing, site)
        if read_R is not None:
            context_TD, sum_TD = (x_TD.index_select(0, read_R) for x_TD in (context_TD, sum_TD))
        return self.output(context_TD), sum_TD


class GatedFeedForward(nn.Module):
    """The second sub-layer: LayerNorm, then GELU of one projection times another, GeGLU (Shazeer 2020), projected back.

    The two projections are one matrix, the one that passes GELU first.
    """

    def __init__(self, config: ModelConfig, ops: OpsConfig) -> None:
        super().__init__()
        self.LayerNorm = LayerNorm(config.hidden_size, config, ops)
        self.input_and_gate = Dense(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.output = Dense(config.intermediate_size, config.hidden_size, bias=False)
        self.approximate = config.hidden_act == "gelu_new"
        self.backend = ops.bias_gelu

    def forward(self, hidden: Twice, attention_site: Dropout | None, site: Dropout | None) -> Twice:
        """Return the sub-layer's output and the sum that it is to be added to, both of shape (T, D).

        Args:
            hidden: Attention's output and the sum that it is to be added to.
            attention_site: Dropout of attention's output; None drops nothing.
            site: Dropout before the projection back; None drops nothing.
        """
        normed_TD, sum_TD = self.LayerNorm.add(*hidden, attention_site)
        x_TC = self.input_and_gate(normed_TD)
        inner_TF = gated_gelu(x_TC, approximate=self.approximate, backend=self.backend)
        return self.output(dropout(inner_TF, site)), sum_TD


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

    def forward(
        self,
        hidden: Twice,
        packing: RotaryPacking,
        stream: DropoutStream | None,
        depth: int,
        read_R: Tensor | None = None,
    ) -> Twice:
        """Return the layer's output and the sum that it is to be added to, of shape (T, D) or (R, D).

        The addition is left to the LayerNorm that follows, which reads both in one pass:

            sum = sum + output;    output = attention(norm(sum))
            sum = sum + output;    output = feed_forward(norm(sum))

        Args:
            hidden: What the previous layer returned; before the first layer the embeddings, twice.
            packing: Where the sequences are, and positions as angles.
            stream: Dropout of the micro-batch; None drops nothing.
            depth: Number of the layer, from 0, which keys dropout.
            read_R: Index of the tokens whose hidden states are read; None: all.
        """
        config = self.config

        def site(name: int, probability: float, of: DropoutStream | None) -> Dropout | None:
            return None if of is None else of.site(depth, name, probability)

        probabilities = attention_dropout(
            stream, layer=depth, probability=config.attention_probs_dropout_prob, num_heads=config.num_attention_heads
        )
        of_read = stream if read_R is None or stream is None else stream.at(read_R)
        attended: Twice = self.attention(hidden, packing, probabilities, read_R)
        attention_site = site(ATTENTION_OUTPUT, config.hidden_dropout_prob, of_read)
        output: Twice = self.feed_forward(
            attended, attention_site, site(FEED_FORWARD_OUTPUT, config.mlp_dropout, of_read)
        )
        return output
