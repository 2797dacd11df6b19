"""The post-LayerNorm encoder layer and the stack of layers (Vaswani et al. 2017; Devlin et al. 2019).

Layers see tokens in one row, sequences end to end. Everything but attention works on each token alone and needs no
boundaries; attention needs them, and the packing works out its part once per micro-batch.
"""

# T packed tokens, R tokens that are read, N heads, D hidden, F intermediate, C = 3 * D

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from megabert.models.deberta import Convolution, DisentangledPacking, DisentangledSelfAttention, RelativeEmbedding
from megabert.models.layers import Dense, DenseGelu, HiddenAndResidual, LayerContext, LayerNorm, SubLayerNorm
from megabert.models.modern import PreNormLayer, RotaryPacking, plan_rotary
from megabert.ops.attention.dense.api import attention, plan_attention
from megabert.ops.attention.dense.cpu import DenseSequences
from megabert.ops.attention.disentangled.api import plan_disentangled_attention
from megabert.ops.dense import dense
from megabert.ops.dropout import ATTENTION_OUTPUT, FEED_FORWARD_OUTPUT, AttentionDropout, Dropout, DropoutStream
from megabert.ops.sequences import PackedBatch
from megabert.ops.triton_support.input_checks import WIDEST_HEAD
from megabert.settings.config.model import ModelConfig
from megabert.settings.config.run import OpsConfig

Packing = DenseSequences | DisentangledPacking | RotaryPacking
"""The sequences as BERT's attention, DeBERTa's or ModernBERT's reads them."""


class QueriesKeysValues(Dense):
    """The packed projection. Its bias gets its gradient from attention, whose kernel has most of the sum at hand."""

    def forward(self, x_TI: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Return queries, keys and values of shape (T, 3 * D), and the bias in them for attention.

        The bias is handed on because ZeRO-3 has it here only.
        """
        return dense(x_TI, self.weight, self.bias.detach(), in_fp8=self.in_fp8), self.bias.view_as(self.bias)


class SelfAttention(nn.Module):
    """Queries, keys and values in one matrix product, then attention within each sequence.

    For each head it is softmax(Q K^T / sqrt(H)) V; dropout of the softmax is keyed by (sequence, head, query, key).
    """

    def __init__(self, config: ModelConfig, ops: OpsConfig) -> None:
        super().__init__()
        self.qkv = QueriesKeysValues(
            config.hidden_size, 3 * config.hidden_size, stacked=3, heads=config.num_attention_heads
        )
        self.num_heads = config.num_attention_heads
        self.backend = ops.attention

    def forward(self, x_TD: Tensor, packing: DenseSequences, site: AttentionDropout | None) -> Tensor:
        """Return the context of each token, of shape (T, D), before the output projection."""
        qkv_TC, bias_C = self.qkv(x_TD)
        heads, backend = self.num_heads, self.backend
        return attention(qkv_TC, packing, num_heads=heads, dropout=site, bias_C=bias_C, backend=backend)


class SubLayerOutput(nn.Module):
    """The end of a sub-layer: dense layer, dropout, residual, LayerNorm.

    The dense layer's bias belongs to the LayerNorm module, whose op adds it.
    """

    def __init__(self, width: int, config: ModelConfig, ops: OpsConfig) -> None:
        super().__init__()
        self.dense = Dense(width, config.hidden_size, bias=False)
        self.LayerNorm = SubLayerNorm(config, ops)

    def forward(self, x: Tensor, residual_TD: Tensor, site: Dropout | None) -> HiddenAndResidual:
        """Return LayerNorm(residual + dropout(dense(x))), of shape (T, D), twice.

        Args:
            x: Context of shape (T, D) or activations of shape (T, F).
            residual_TD: Input of the sub-layer.
            site: Dropout of the dense layer's output; None drops nothing.
        """
        return self.LayerNorm(self.dense(x), residual_TD, site)


class Attention(nn.Module):
    """The first sub-layer: self-attention, BERT's or DeBERTa's, and its output projection."""

    def __init__(self, config: ModelConfig, ops: OpsConfig) -> None:
        super().__init__()
        self.config = config
        self.self = (DisentangledSelfAttention if config.pos_att_type else SelfAttention)(config, ops)
        self.output = SubLayerOutput(config.hidden_size, config, ops)

    def forward(self, hidden: HiddenAndResidual, packing: Packing, context: LayerContext) -> HiddenAndResidual:
        """Return the sub-layer's hidden states, of shape (T, D) or (R, D), twice.

        Args:
            hidden: Hidden states of the previous layer.
            packing: Where the sequences are, of the kind that this model's attention takes.
            context: Depth, dropout, and the tokens that are read.
        """
        x_TD, residual_TD = hidden
        probabilities = context.probabilities(self.config)
        if context.queries is None:
            context_TD = self.self(x_TD, packing, probabilities)
        else:  # the enhanced mask decoder's
            queries_TD, residual_TD = context.queries
            context_TD = self.self(x_TD, packing, probabilities, queries_TD)
        site = context.site(ATTENTION_OUTPUT, self.config.hidden_dropout_prob)
        return self.output(context.select(context_TD), context.select(residual_TD), site)


class EncoderLayer(nn.Module):
    """Attention and feed-forward, each followed by dropout, residual and LayerNorm."""

    def __init__(self, config: ModelConfig, ops: OpsConfig) -> None:
        super().__init__()
        self.config = config
        self.attention = Attention(config, ops)
        self.intermediate = DenseGelu(config.hidden_size, config.intermediate_size, config, ops)
        self.output = SubLayerOutput(config.intermediate_size, config, ops)

    def forward(self, hidden: HiddenAndResidual, packing: Packing, context: LayerContext) -> HiddenAndResidual:
        """Return the next hidden states, of shape (T, D) or (R, D), twice.

        Args:
            hidden: Hidden states of the previous layer.
            packing: Where the sequences are.
            context: Depth, dropout, and the tokens that are read.
        """
        # x = norm(x + dropout(attention(x)))
        # x = norm(x + dropout(dense(gelu(dense(x)))))
        x_RD, residual_RD = self.attention(hidden, packing, context)
        site = context.site(FEED_FORWARD_OUTPUT, self.config.hidden_dropout_prob)
        return self.output(self.intermediate(x_RD), residual_RD, site)


class BertEncoder(nn.Module):
    """The stack of layers; neighbours may share their weights (ALBERT: Lan et al. 2020, section 3.1)."""

    def __init__(self, config: ModelConfig, ops: OpsConfig, *, activation_checkpointing: bool) -> None:
        super().__init__()
        if ops.attention == "auto" and config.head_width > WIDEST_HEAD:
            ops = replace(ops, attention="torch")
        self.config = config
        self.ops = ops
        groups = config.num_hidden_groups or config.num_hidden_layers
        is_pre_norm = config.traits.is_pre_norm
        self.layer = nn.ModuleList(
            PreNormLayer(config, ops, depth=depth) if is_pre_norm else EncoderLayer(config, ops)
            for depth in range(groups)
        )
        self.LayerNorm = LayerNorm(config.hidden_size, config, ops) if is_pre_norm else None
        self.relative = RelativeEmbedding(config, ops) if config.pos_att_type else None
        self.convolution = Convolution(config, ops) if config.conv_kernel_size else None
        self.activation_checkpointing = activation_checkpointing
        self.global_rope_theta = config.global_rope_theta  # a phase may set its own

    def forward(
        self,
        x_TD: Tensor,
        batch: PackedBatch,
        stream: DropoutStream | None,
        read_R: Tensor | None = None,
        absolute_TD: Tensor | None = None,
    ) -> Tensor:
        """Return the last hidden states, of shape (T, D) or (R, D).

        Args:
            x_TD: Embedded tokens.
            batch: Where the sequences are; its tokens are not read.
            stream: Dropout of the micro-batch; None drops nothing.
            read_R: Index of the tokens whose last hidden states are read; None reads all. Pre-training reads a
                sixth, and three quarters of the last layer's matrix products come after attention.
            absolute_TD: Embeddings of absolute positions for the enhanced mask decoder; None leaves it out.
        """
        layers = self.config.num_hidden_layers
        if read_R is not None and layers == 1 and self.convolution is not None:  # which comes last, and adds all tokens
            return self.forward(x_TD, batch, stream).index_select(0, read_R)
        packing = self._pack(batch)
        hidden: HiddenAndResidual = (x_TD, x_TD)
        for depth in range(layers - (absolute_TD is not None)):
            read = read_R if depth == layers - 1 else None
            hidden = self._layer(depth)(hidden, packing, LayerContext(stream, depth, read_R=read))
            if depth == 0 and self.convolution is not None:
                convolved_TD = self.convolution(x_TD, hidden[0], batch.cu_seqlens, stream)
                hidden = (convolved_TD, convolved_TD)
        if absolute_TD is not None:
            hidden = self._decode(hidden, absolute_TD, packing, stream, read_R)
        return hidden[0] if self.LayerNorm is None else self.LayerNorm.add(*hidden)[0]

    def _layer(self, depth: int) -> Callable[..., HiddenAndResidual]:
        """Return a layer, recomputed in the backward pass if activations are not kept."""
        # With fewer sets of weights than layers, neighbours take the same one: 0 0 0 1 1 1 for two in six layers.
        layer: Callable[..., HiddenAndResidual] = self.layer[depth * len(self.layer) // self.config.num_hidden_layers]
        if self.activation_checkpointing and torch.is_grad_enabled():
            # Dropout is keyed, so the recomputed layer is the same one without saving a generator's state.
            return partial(checkpoint, layer, use_reentrant=False, preserve_rng_state=False)
        return layer

    def _decode(
        self,
        hidden: HiddenAndResidual,
        absolute_TD: Tensor,
        packing: Packing,
        stream: DropoutStream | None,
        read_R: Tensor | None,
    ) -> HiddenAndResidual:
        """Apply the last layer twice, with queries that know their positions (He et al. 2021, section 3.2).

        The first queries are the hidden states of the layer before plus absolute positions, the second are the first
        pass's result; keys and values are those hidden states both times. So the authors' code has it.
        """
        last = self.config.num_hidden_layers - 1
        queries: HiddenAndResidual = (hidden[0] + absolute_TD,) * 2
        queries = self._layer(last)(hidden, packing, LayerContext(stream, last, queries))
        return self._layer(last)(hidden, packing, LayerContext(stream, last + 1, queries, read_R))

    def _pack(self, batch: PackedBatch) -> Packing:
        """Work out once what attention needs in every layer: where sequences are, and how a CPU lays them out."""
        if self.config.traits.is_pre_norm:
            return plan_rotary(batch, self.config, self.ops, global_base=self.global_rope_theta)
        sizes = {
            "tokens": len(batch.input_ids_T),
            "max_seqlen": batch.max_seqlen,
            "num_heads": self.config.num_attention_heads,
        }
        if self.relative is not None:
            return self.relative(plan_disentangled_attention(batch.cu_seqlens, **sizes, backend=self.ops.attention))
        return plan_attention(batch.cu_seqlens, **sizes, backend=self.ops.attention)
