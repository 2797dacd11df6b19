"""The two pre-training heads, masked LM and next sentence (Devlin et al. 2019, section 3.1)."""

# M masked positions, D hidden, V vocabulary, E embedding width

import torch
from torch import Tensor, nn

from megabert.models.layers import Dense, DenseGelu, Embedding, LayerNorm
from megabert.ops.dense import dense
from megabert.settings.config.model import ModelConfig
from megabert.settings.config.run import OpsConfig


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
