"""The post-LayerNorm encoder layer and the stack of them (Vaswani et al. 2017; Devlin et al. 2019)."""

# T packed tokens, N heads, D hidden, F intermediate, C = 3 * D

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from megabert.config.model import ModelConfig
from megabert.config.run import OpsConfig
from megabert.models.batch import Packing
from megabert.models.deberta.convolution import Convolution
from megabert.models.deberta.disentangled import DisentangledSelfAttention, RelativeEmbedding
from megabert.models.embeddings import ResidualLayerNorm
from megabert.ops.attention import attention
from megabert.ops.bias_gelu import bias_gelu
from megabert.ops.dropout import (
    ATTENTION_OUTPUT,
    ATTENTION_PROBABILITIES,
    FEED_FORWARD_OUTPUT,
    Dropout,
    DropoutStream,
)


class BiasGelu(nn.Module):
    """GELU that owns the bias of the dense layer before it, because one op does both."""

    def __init__(self, width: int, *, hidden_act: str, backend: str) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(width))
        self.approximate = hidden_act == "gelu_new"
        self.backend = backend

    def forward(self, x_TF: Tensor) -> Tensor:
        """Return GELU(x + bias)."""
        return bias_gelu(x_TF, self.bias, approximate=self.approximate, backend=self.backend)


class SelfAttention(nn.Module):
    """Queries, keys and values in one matrix product, then attention within each sequence."""

    def __init__(self, config: ModelConfig, ops: OpsConfig) -> None:
        super().__init__()
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.num_heads = config.num_attention_heads
        self.dropout_prob = config.attention_probs_dropout_prob
        self.backend = ops.attention

    def forward(self, x_TD: Tensor, packing: Packing, site: Dropout | None) -> Tensor:
        """Return the context of each token, of shape (T, D), before the output projection."""
        return attention(
            self.qkv(x_TD),
            packing.cu_seqlens,
            max_seqlen=packing.max_seqlen,
            num_heads=self.num_heads,
            dropout=site,
            plan=packing.plan,
            backend=self.backend,
        )


class SubLayerOutput(nn.Module):
    """Dense layer, dropout, residual, LayerNorm."""

    def __init__(self, width: int, config: ModelConfig, ops: OpsConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(width, config.hidden_size, bias=False)
        self.LayerNorm = ResidualLayerNorm(config.hidden_size, eps=config.layer_norm_eps, backend=ops.layer_norm)

    def forward(self, x: Tensor, residual_TD: Tensor, site: Dropout | None) -> Tensor:
        """Return LayerNorm(residual + dropout(dense(x)))."""
        return self.LayerNorm(self.dense(x), residual_TD, site)


class Intermediate(nn.Module):
    """The feed-forward layer's first half."""

    def __init__(self, config: ModelConfig, ops: OpsConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.activation = BiasGelu(config.intermediate_size, hidden_act=config.hidden_act, backend=ops.bias_gelu)

    def forward(self, x_TD: Tensor) -> Tensor:
        """Return GELU(dense(x)), of shape (T, F)."""
        return self.activation(self.dense(x_TD))


class Attention(nn.Module):
    """Self-attention with its output projection."""

    def __init__(self, config: ModelConfig, ops: OpsConfig) -> None:
        super().__init__()
        self.self = (DisentangledSelfAttention if config.pos_att_type else SelfAttention)(config, ops)
        self.output = SubLayerOutput(config.hidden_size, config, ops)

    def forward(self, x_TD: Tensor, packing: Packing, sites: tuple[Dropout | None, Dropout | None]) -> Tensor:
        """Return the first sub-layer's hidden states; ``sites`` are the dropouts of probabilities and output."""
        probabilities_site, output_site = sites
        return self.output(self.self(x_TD, packing, probabilities_site), x_TD, output_site)


class EncoderLayer(nn.Module):
    """Attention and feed-forward, each closed by a residual and LayerNorm."""

    def __init__(self, config: ModelConfig, ops: OpsConfig) -> None:
        super().__init__()
        self.config = config
        self.attention = Attention(config, ops)
        self.intermediate = Intermediate(config, ops)
        self.output = SubLayerOutput(config.intermediate_size, config, ops)

    def forward(self, x_TD: Tensor, packing: Packing, stream: DropoutStream | None, depth: int) -> Tensor:
        """Return the next hidden states; ``stream`` None drops nothing, ``depth`` keys what it drops."""

        def site(name: int, *, heads: int = 0) -> Dropout | None:
            if stream is None:
                return None
            probability = self.config.attention_probs_dropout_prob if heads else self.config.hidden_dropout_prob
            return stream.site(depth, name, probability, heads=heads)

        probabilities = site(ATTENTION_PROBABILITIES, heads=self.config.num_attention_heads)
        x_TD = self.attention(x_TD, packing, (probabilities, site(ATTENTION_OUTPUT)))
        return self.output(self.intermediate(x_TD), x_TD, site(FEED_FORWARD_OUTPUT))


class BertEncoder(nn.Module):
    """The stack of layers; neighbours may share their weights (Lan et al. 2020, section 3.1)."""

    def __init__(self, config: ModelConfig, ops: OpsConfig, *, activation_checkpointing: bool) -> None:
        super().__init__()
        self.num_hidden_layers = config.num_hidden_layers
        groups = config.num_hidden_groups or config.num_hidden_layers
        self.layer = nn.ModuleList(EncoderLayer(config, ops) for _ in range(groups))
        self.relative = RelativeEmbedding(config, ops) if config.pos_att_type else None
        self.convolution = Convolution(config, ops) if config.conv_kernel_size else None
        self.activation_checkpointing = activation_checkpointing

    def forward(self, x_TD: Tensor, packing: Packing, stream: DropoutStream | None) -> Tensor:
        """Return the last hidden states, of shape (T, D)."""
        if self.relative is not None:
            packing = replace(packing, relative=self.relative(packing.max_seqlen))
        embedded_TD = x_TD
        for depth in range(self.num_hidden_layers):
            layer = self.layer[depth * len(self.layer) // self.num_hidden_layers]
            if self.activation_checkpointing and torch.is_grad_enabled():
                # dropout is keyed, so the recomputed layer is the same one without saving a generator's state
                x_TD = checkpoint(layer, x_TD, packing, stream, depth, use_reentrant=False, preserve_rng_state=False)
            else:
                x_TD = layer(x_TD, packing, stream, depth)
            if depth == 0 and self.convolution is not None:
                x_TD = self.convolution(embedded_TD, x_TD, packing.cu_seqlens, stream)
        return x_TD
