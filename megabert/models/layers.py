"""A model's parts around the encoder layers, and the building blocks of all of them.

LayerNorm and GELU, each one fused op; the embeddings that the encoder starts from; the pooler; the two pre-training
heads, masked LM and next sentence (Devlin et al. 2019, section 3.1).

LayerNorm and GELU may own the bias of the dense layer before them, because one fused op adds the bias and does the
rest. The bias cannot stay in the dense layer: ZeRO-3 gathers a parameter in the forward of the module that owns it and
nowhere else.
"""

# T packed tokens, B sequences, M masked positions, D hidden, F intermediate, V vocabulary,
# I inputs, O outputs, E embedding width (the hidden width, but for ALBERT and ELECTRA)

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from megabert.ops.bias_gelu.api import bias_gelu
from megabert.ops.dense import dense, embedding
from megabert.ops.dropout import EMBEDDINGS, AttentionDropout, Dropout, DropoutStream, attention_dropout, dropout
from megabert.ops.layer_norm.api import layer_norm
from megabert.ops.sequences import PackedBatch
from megabert.settings.config.model import ModelConfig
from megabert.settings.config.run import OpsConfig

HiddenAndResidual = tuple[Tensor, Tensor]
"""Hidden states for the next dense layer, and the same as the next residual: LayerNorm adds up their two gradients."""


@dataclass(frozen=True)
class LayerContext:
    """A layer's place in the stack, its dropout, and the tokens that are read: all input but the hidden states."""

    stream: DropoutStream | None
    """Dropout of the micro-batch; None drops nothing."""
    depth: int
    """Number of the layer, from 0; -1 for the embeddings. It keys dropout: layers share weights, but no masks."""
    queries: HiddenAndResidual | None = None
    """Hidden states for queries and residuals, if keys and values are made of other ones."""
    read_R: Tensor | None = None
    """Index of the tokens whose hidden states are read; None reads all. They attend to all tokens; after attention each
    token is by itself, and the others are left out."""

    def select(self, x_TD: Tensor) -> Tensor:
        """Return the rows of the tokens that are read."""
        return x_TD if self.read_R is None else x_TD.index_select(0, self.read_R)

    def site(self, name: int, probability: float) -> Dropout | None:
        """Return the dropout of the tokens that are read, at one of the sites of ``ops.dropout``."""
        return None if self._read_stream is None else self._read_stream.site(self.depth, name, probability)

    def probabilities(self, config: ModelConfig) -> AttentionDropout | None:
        """Return the dropout of attention probabilities."""
        rate, heads = config.attention_probs_dropout_prob, config.num_attention_heads
        return attention_dropout(self.stream, layer=self.depth, probability=rate, num_heads=heads)

    @cached_property
    def _read_stream(self) -> DropoutStream | None:
        return self.stream if self.stream is None or self.read_R is None else self.stream.at(self.read_R)


class Dense(nn.Linear):
    """A dense layer; its backward pass may add the weight's gradient to a sum, see ``ops.dense``.

    Args:
        inputs: Width of the input.
        outputs: Width of the output.
        bias: Whether it has one.
        stacked: How many matrices its weight consists of, one below the other: 3 for queries, keys and values.
        heads: How many heads of attention each of these consists of.
    """

    in_fp8 = False
    """Whether its output and the gradient of its input are products in 8 bits: ``build_model`` decides."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool = True, stacked: int = 1, heads: int = 1) -> None:
        super().__init__(inputs, outputs, bias=bias)
        self.stacked, self.heads = stacked, heads

    def forward(self, x_TI: Tensor) -> Tensor:
        """Return x W^T + bias, of shape (T, O)."""
        return dense(x_TI, self.weight, self.bias, in_fp8=self.in_fp8)


class LayerNorm(nn.Module):
    """LayerNorm (Ba et al. 2016) of one tensor, or of its sum with another.

    Args:
        width: Size of the last dimension.
        config: Gives the number that is added to the variance.
        ops: Backend of the op ``layer_norm``.
    """

    def __init__(self, width: int, config: ModelConfig, ops: OpsConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if config.traits.has_biases else None
        self.eps = config.layer_norm_eps
        self.backend = ops.layer_norm

    def forward(self, x_TD: Tensor, other_TD: Tensor | None = None) -> Tensor:
        """Return LayerNorm(x + other), of shape (T, D); without another tensor, of x alone."""
        return self._op(x_TD, residual_TD=other_TD)[0]

    def add(self, x_TD: Tensor, residual_TD: Tensor, site: Dropout | None = None) -> HiddenAndResidual:
        """Return LayerNorm(z) and z = residual + dropout(x), both of shape (T, D)."""
        return self._op(x_TD, residual_TD=residual_TD, dropout=site, returns_sum=True)

    def _op(self, x_TD: Tensor, **inputs: Any) -> HiddenAndResidual:
        return layer_norm(x_TD, self.weight, self.bias, eps=self.eps, backend=self.backend, **inputs)


class SubLayerNorm(LayerNorm):
    """The end of a post-LayerNorm sub-layer: the dense layer's bias, dropout, residual and LayerNorm.

    Args:
        config: Gives the width, and the number that is added to the variance.
        ops: Backend of the op ``layer_norm``.
    """

    def __init__(self, config: ModelConfig, ops: OpsConfig) -> None:
        super().__init__(config.hidden_size, config, ops)
        self.dense_bias = nn.Parameter(torch.zeros(config.hidden_size))

    def forward(self, x_TD: Tensor, residual_TD: Tensor, site: Dropout | None) -> HiddenAndResidual:  # type: ignore[override]
        """Return LayerNorm(residual + dropout(x + dense bias)), of shape (T, D), twice.

        Args:
            x_TD: Output of the dense layer, without its bias.
            residual_TD: Input of the sub-layer.
            site: Dropout of the sub-layer's output; None drops nothing.
        """
        return self._op(x_TD, input_bias_D=self.dense_bias, residual_TD=residual_TD, dropout=site)


class BiasGelu(nn.Module):
    """GELU (Hendrycks & Gimpel 2016) with the bias of the dense layer before it.

    Args:
        width: Size of the last dimension.
        hidden_act: ``gelu`` (erf form) or ``gelu_new`` (tanh form), as in Hugging Face's ``config.json``.
        backend: Backend of the op ``bias_gelu``.
        has_bias: Whether the dense layer has a bias.
    """

    def __init__(self, width: int, *, hidden_act: str, backend: str, has_bias: bool) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(width)) if has_bias else None
        self.approximate = hidden_act == "gelu_new"
        self.backend = backend

    def forward(self, x_TF: Tensor) -> Tensor:
        """Return GELU(x + bias), of the shape of ``x_TF``."""
        bias_F = x_TF.new_zeros(x_TF.shape[-1]) if self.bias is None else self.bias
        return bias_gelu(x_TF, bias_F, approximate=self.approximate, backend=self.backend)


class Embedding(nn.Embedding):
    """A table of rows (``ops.dense.embedding``), whose gradient repeats bit for bit on a GPU, too."""

    def reset_parameters(self) -> None:
        """Draw rows, unless there are none yet: on the meta device torch would import its compiler for that."""
        if not self.weight.is_meta:
            super().reset_parameters()

    def forward(self, ids_T: Tensor) -> Tensor:
        """Return the rows of tokens, of shape (T, E)."""
        return embedding(ids_T, self.weight)


class DenseGelu(nn.Module):
    """Dense layer and GELU, which adds the dense layer's bias.

    Args:
        width: Width of the input.
        outputs: Width of the output.
        config: Says which form of GELU it is, and whether there are biases.
        ops: Backend of the op ``bias_gelu``.
        act: Form of GELU if it is not the configuration's ``hidden_act``.
    """

    def __init__(
        self, width: int, outputs: int, config: ModelConfig, ops: OpsConfig, *, act: str | None = None
    ) -> None:
        super().__init__()
        self.dense = Dense(width, outputs, bias=False)
        self.activation = BiasGelu(
            outputs, hidden_act=act or config.hidden_act, backend=ops.bias_gelu, has_bias=config.traits.has_biases
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return GELU(dense(x))."""
        return self.activation(self.dense(x))


class BertEmbeddings(nn.Module):
    """Sum of the embeddings, LayerNorm, dropout (Devlin et al. 2019, section 3).

    BERT adds up words, positions and segments. DeBERTa and ModernBERT have words alone (their positions are in the
    attention scores), and RoBERTa has a segment table of one row. DeBERTa 3 projects narrow embeddings here.

    Args:
        config: Sizes and family.
        ops: Backend of the op ``layer_norm``.
        words: Table of words, to share it; None makes a new one.
    """

    def __init__(self, config: ModelConfig, ops: OpsConfig, *, words: nn.Embedding | None = None) -> None:
        super().__init__()
        width = config.embedding_width
        self.word_embeddings = words or Embedding(config.padded_vocab_size, width)
        has_positions, segments = config.position_biased_input, config.type_vocab_size
        self.position_embeddings = Embedding(config.max_position_embeddings, width) if has_positions else None
        self.token_type_embeddings = Embedding(segments, width) if segments else None
        self.embed_proj = None
        if config.projects_embeddings and config.traits.norm_after_projection:
            self.embed_proj, width = Dense(width, config.hidden_size, bias=False), config.hidden_size
        self.LayerNorm = LayerNorm(width, config, ops)
        self.dropout_prob = config.embedding_dropout if config.traits.is_pre_norm else config.hidden_dropout_prob

    def forward(self, batch: PackedBatch, stream: DropoutStream | None, input_ids_T: Tensor | None = None) -> Tensor:
        """Return the embedded tokens, of shape (T, E), or (T, D) if they are projected here.

        Args:
            batch: Packed micro-batch.
            stream: Dropout of the micro-batch; None drops nothing.
            input_ids_T: Tokens to read instead of the batch's; ELECTRA's discriminator reads the generator's.
        """
        word_TE = self.word_embeddings(batch.input_ids_T if input_ids_T is None else input_ids_T)
        other_TE = self._positions_and_segments(batch)
        if self.embed_proj is not None:
            word_TE, other_TE = self.embed_proj(word_TE if other_TE is None else word_TE + other_TE), None
        x_TE = self.LayerNorm(word_TE, other_TE)
        return dropout(x_TE, LayerContext(stream, -1).site(EMBEDDINGS, self.dropout_prob))

    def _positions_and_segments(self, batch: PackedBatch) -> Tensor | None:
        """Return the sum of all embeddings but the words', of shape (T, E), or None if there are no others."""
        position_TE = None if self.position_embeddings is None else self.position_embeddings(batch.position_ids_T)
        if self.token_type_embeddings is None:
            return position_TE
        segment_TE = self.token_type_embeddings(batch.segment_ids_T)
        return segment_TE if position_TE is None else position_TE + segment_TE


class BertPooler(nn.Module):
    """Dense layer and activation on [CLS], the first token of each sequence; tanh, in ELECTRA and DeBERTa GELU."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dense = Dense(config.hidden_size, config.hidden_size)
        self.activation = torch.tanh if config.traits.pooler_act == "tanh" else functional.gelu

    def forward(self, first_BD: Tensor) -> Tensor:
        """Return one vector per sequence, of shape (B, D), from the hidden states of the first tokens."""
        return self.activation(self.dense(first_BD))


def first_tokens(batch: PackedBatch) -> Tensor:
    """Return the index of each sequence's first token, int64 of shape (B,).

    A padded sequence has none; it gives the index of another token, which no label counts.
    """
    # No length is read, so a GPU need not be waited for.
    return batch.cu_seqlens[:-1].long().clamp(max=len(batch.input_ids_T) - 1)


class MaskedLmTransform(DenseGelu):
    """Dense layer, activation and LayerNorm before the decoder, from the hidden to the embedding width."""

    def __init__(self, config: ModelConfig, ops: OpsConfig) -> None:
        super().__init__(config.hidden_size, config.embedding_width, config, ops, act=config.traits.head_act)
        self.LayerNorm = LayerNorm(config.embedding_width, config, ops)

    def forward(self, x_MD: Tensor) -> Tensor:
        """Return shape (M, E)."""
        return self.LayerNorm(super().forward(x_MD))


class TiedDecoder(nn.Module):
    """Projection to the vocabulary whose weight is the word embeddings (Press & Wolf 2017).

    The parameter is registered here as well, so that ZeRO-3 gathers it for this forward.
    """

    def __init__(self, weight: Tensor, vocab_size: int) -> None:
        super().__init__()
        self.weight = weight
        self.bias = nn.Parameter(torch.zeros(weight.shape[0]))
        self.vocab_size = vocab_size

    def forward(self, x_ME: Tensor) -> Tensor:
        """Return logits of the padded vocabulary, of shape (M, V).

        Pieces that pad the vocabulary to a multiple of 64 get -inf: they are never predicted and have no gradient.
        """
        bias_V: Tensor = self.bias
        if self.vocab_size < bias_V.numel():
            is_padding_V = torch.arange(bias_V.numel(), device=bias_V.device) >= self.vocab_size
            bias_V = bias_V.masked_fill(is_padding_V, -torch.inf)
        return dense(x_ME, self.weight, bias_V)


class MaskedLmHead(nn.Module):
    """Logits at masked positions, about 15% of the tokens: only these are projected to the vocabulary."""

    def __init__(self, word_embeddings: Tensor, config: ModelConfig, ops: OpsConfig) -> None:
        super().__init__()
        self.transform = MaskedLmTransform(config, ops)
        self.decoder = TiedDecoder(word_embeddings, int(config.vocab_size))

    def forward(self, hidden_MD: Tensor) -> Tensor:
        """Return logits of shape (M, V)."""
        return self.decoder(self.transform(hidden_MD))


class PretrainingHeads(nn.Module):
    """The masked-language-model head and, with a sentence objective, the next-sentence head. Models call the parts."""

    def __init__(
        self, word_embeddings: Tensor, config: ModelConfig, ops: OpsConfig, *, has_sentence_objective: bool
    ) -> None:
        super().__init__()
        self.predictions = MaskedLmHead(word_embeddings, config, ops)
        # The enhanced mask decoder's absolute positions, which the encoder adds to the queries of its last layer.
        has_positions, rows = config.enhanced_mask_decoder, config.max_position_embeddings
        self.position_embeddings = Embedding(rows, config.hidden_size) if has_positions else None
        self.seq_relationship = Dense(config.hidden_size, 2) if has_sentence_objective else None
