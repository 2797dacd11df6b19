"""ModernBERT's layer (Warner et al. 2024, section 2.1): LayerNorm in front, rotary positions, a local window, GeGLU.

A layer adds to its input what attention and feed-forward make of it, so that an identity runs through all of them
(Xiong et al. 2020). Dense layers and LayerNorms have no biases. The first layer has no LayerNorm before attention,
since the embeddings end with one; behind the last layer there is one more.
"""

# T packed tokens, N heads, H head width, D = N * H hidden, F intermediate

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional

from megabert.config.model import ModelConfig
from megabert.config.run import OpsConfig
from megabert.models.layers import Dense, LayerNorm, PackedBatch, Twice
from megabert.ops.attention.dropout import AttentionDropout, attention_dropout
from megabert.ops.attention.rotary.api import plan_rotary_attention, rotary_attention, turns_of
from megabert.ops.attention.rotary.cpu import RotarySequences
from megabert.ops.dropout import ATTENTION_OUTPUT, FEED_FORWARD_OUTPUT, Dropout, DropoutStream, dropout


@dataclass(frozen=True)
class RotaryPacking:
    """What ModernBERT's attention needs to know of the sequences of a micro-batch; the same for every layer."""

    sequences: RotarySequences
    """Where they are."""
    turns: dict[bool, Tensor]
    """Cosines and sines of positions in layers with global attention (True) and with local attention (False)."""


def plan_rotary(batch: PackedBatch, config: ModelConfig, ops: OpsConfig) -> RotaryPacking:
    """Work out once for all layers of a micro-batch what attention needs."""
    sequences = plan_rotary_attention(
        batch.cu_seqlens,
        batch.position_ids_T,
        max_seqlen=batch.max_seqlen,
        num_heads=config.num_attention_heads,
        reach=config.reach,
        backend=ops.attention,
    )
    bases = {True: config.global_rope_theta, False: config.local_rope_theta}
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
    """The first sub-layer: LayerNorm but in the first layer, attention, output projection, dropout."""

    def __init__(self, config: ModelConfig, ops: OpsConfig, *, depth: int) -> None:
        super().__init__()
        self.LayerNorm = LayerNorm(config.hidden_size, config, ops) if depth else None
        self.self = RotarySelfAttention(config, ops, is_global=config.is_global(depth))
        self.output = Dense(config.hidden_size, config.hidden_size, bias=False)

    def forward(
        self,
        x_TD: Tensor,
        packing: RotaryPacking,
        sites: tuple[AttentionDropout | None, Dropout | None],
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
        self.input_and_gate = Dense(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.output = Dense(config.intermediate_size, config.hidden_size, bias=False)
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
        config = self.config

        def site(name: int, probability: float, of: DropoutStream | None) -> Dropout | None:
            return None if of is None else of.site(depth, name, probability)

        probabilities = attention_dropout(
            stream, layer=depth, probability=config.attention_probs_dropout_prob, num_heads=config.num_attention_heads
        )
        of_read, (x_TD, residual_TD) = stream, hidden
        if read_R is not None:
            of_read = None if stream is None else stream.at(read_R)
            residual_TD = residual_TD.index_select(0, read_R)
        sites = (probabilities, site(ATTENTION_OUTPUT, config.hidden_dropout_prob, of_read))
        x_RD = residual_TD + self.attention(x_TD, packing, sites, read_R)
        x_RD = x_RD + self.feed_forward(x_RD, site(FEED_FORWARD_OUTPUT, config.mlp_dropout, of_read))
        return x_RD, x_RD
