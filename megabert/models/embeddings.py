"""The embeddings that the encoder starts from: words, and in most families positions and segments."""

# T packed tokens, E embedding width (the hidden width, but for ALBERT and ELECTRA)

from torch import Tensor, nn

from megabert.config.model import ModelConfig
from megabert.config.run import OpsConfig
from megabert.models.batch import PackedBatch
from megabert.models.layers import LayerNorm
from megabert.ops.dropout import EMBEDDINGS, DropoutStream, dropout


class BertEmbeddings(nn.Module):
    """Sum of the embeddings, LayerNorm, dropout (Devlin et al. 2019, section 3).

    BERT adds up words, positions and segments. DeBERTa has words alone (its positions are in the attention scores), and
    RoBERTa has a segment table of one row.
    """

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
            batch: Packed micro-batch.
            stream: Dropout of the micro-batch; None drops nothing.
            input_ids_T: Tokens to read instead of the batch's; ELECTRA's discriminator reads the generator's.
        """
        word_TE = self.word_embeddings(batch.input_ids_T if input_ids_T is None else input_ids_T)
        x_TE = self.LayerNorm(word_TE, self._positions_and_segments(batch))
        return dropout(x_TE, None if stream is None else stream.site(-1, EMBEDDINGS, self.dropout_prob))

    def _positions_and_segments(self, batch: PackedBatch) -> Tensor | None:
        """Return what is added to the words, of shape (T, E), or None where nothing is."""
        position_TE = None if self.position_embeddings is None else self.position_embeddings(batch.position_ids_T)
        if self.token_type_embeddings is None:
            return position_TE
        segment_TE: Tensor = self.token_type_embeddings(batch.segment_ids_T)
        return segment_TE if position_TE is None else position_TE + segment_TE
