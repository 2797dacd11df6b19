"""Word, position and segment embeddings, and the LayerNorm modules that layers share."""

# T packed tokens, D hidden, E embedding

import torch
from torch import Tensor, nn

from megabert.config.model import ModelConfig
from megabert.config.run import OpsConfig
from megabert.models.batch import PackedBatch
from megabert.ops.dropout import EMBEDDINGS, Dropout, DropoutStream, dropout
from megabert.ops.layer_norm import layer_norm


class LayerNorm(nn.Module):
    """LayerNorm, of a sum where there is a residual."""

    def __init__(self, width: int, *, eps: float, backend: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.eps = eps
        self.backend = backend

    def forward(self, x_TD: Tensor, residual_TD: Tensor | None = None) -> Tensor:
        """Return LayerNorm(residual + x)."""
        return layer_norm(x_TD, self.weight, self.bias, eps=self.eps, residual_TD=residual_TD, backend=self.backend)


class ResidualLayerNorm(nn.Module):
    """The end of a sub-layer; owns the bias of the dense layer before it, because one op adds both.

    A parameter is read only inside the forward of the module that owns it: ZeRO-3 gathers it there and nowhere else.
    """

    def __init__(self, width: int, *, eps: float, backend: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.dense_bias = nn.Parameter(torch.zeros(width))
        self.eps = eps
        self.backend = backend

    def forward(self, x_TD: Tensor, residual_TD: Tensor, site: Dropout | None = None) -> Tensor:
        """Return LayerNorm(residual + dropout(x + dense bias))."""
        return layer_norm(
            x_TD,
            self.weight,
            self.bias,
            eps=self.eps,
            input_bias_D=self.dense_bias,
            residual_TD=residual_TD,
            dropout=site,
            backend=self.backend,
        )


class BertEmbeddings(nn.Module):
    """Sum of embeddings, in BERT of three, LayerNorm, dropout (Devlin et al. 2019, section 3)."""

    def __init__(self, config: ModelConfig, ops: OpsConfig) -> None:
        super().__init__()
        width = config.embedding_width
        self.word_embeddings = nn.Embedding(config.padded_vocab_size, width)
        has_positions, segments = config.position_biased_input, config.type_vocab_size
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, width) if has_positions else None
        self.token_type_embeddings = nn.Embedding(segments, width) if segments else None
        self.LayerNorm = LayerNorm(width, eps=config.layer_norm_eps, backend=ops.layer_norm)
        self.dropout_prob = config.hidden_dropout_prob

    def forward(self, batch: PackedBatch, stream: DropoutStream | None, input_ids_T: Tensor | None = None) -> Tensor:
        """Return the embedded tokens, of shape (T, E).

        Args:
            batch: Packed tokens.
            stream: Random numbers of the micro-batch; None drops nothing.
            input_ids_T: Tokens to read instead of the batch's.
        """
        word_TE = self.word_embeddings(batch.input_ids_T if input_ids_T is None else input_ids_T)
        x_TE = self.LayerNorm(word_TE, self._place(batch))
        return dropout(x_TE, None if stream is None else stream.site(-1, EMBEDDINGS, self.dropout_prob))

    def _place(self, batch: PackedBatch) -> Tensor | None:
        """Return what is added to the words, of shape (T, E); DeBERTa adds nothing."""
        position_TE = None if self.position_embeddings is None else self.position_embeddings(batch.position_ids_T)
        if self.token_type_embeddings is None:
            return position_TE
        segment_TE: Tensor = self.token_type_embeddings(batch.segment_ids_T)
        return segment_TE if position_TE is None else position_TE + segment_TE
