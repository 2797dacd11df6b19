"""The pooler and the two pre-training heads: masked LM and next sentence (Devlin et al. 2019, section 3.1)."""

# T packed tokens, B sequences, M masked positions, D hidden, E embedding width, V vocabulary

import torch
from torch import Tensor, nn
from torch.nn import functional

from megabert.config.model import ModelConfig
from megabert.config.run import OpsConfig
from megabert.models.layers import BiasGelu, LayerNorm


class BertPooler(nn.Module):
    """Dense layer and activation on [CLS], the first token of each sequence; tanh, in ELECTRA and DeBERTa GELU."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = torch.tanh if config.traits.pooler_act == "tanh" else functional.gelu

    def forward(self, hidden_TD: Tensor, cu_seqlens: Tensor) -> Tensor:
        """Return one vector a sequence, of shape (B, D).

        A padded sequence has no first token; it gives the row of another token, which no label counts.
        """
        first_B = cu_seqlens[:-1].long().clamp(max=hidden_TD.shape[0] - 1)
        return self.activation(self.dense(hidden_TD.index_select(0, first_B)))


class MaskedLmTransform(nn.Module):
    """Dense layer, activation and LayerNorm before the decoder, from the hidden to the embedding width."""

    def __init__(self, config: ModelConfig, ops: OpsConfig) -> None:
        super().__init__()
        width, act = config.embedding_width, config.traits.head_act or config.hidden_act
        self.dense = nn.Linear(config.hidden_size, width, bias=False)
        self.activation = BiasGelu(width, hidden_act=act, backend=ops.bias_gelu)
        self.LayerNorm = LayerNorm(width, eps=config.layer_norm_eps, backend=ops.layer_norm)

    def forward(self, x_MD: Tensor) -> Tensor:
        """Return shape (M, E)."""
        return self.LayerNorm(self.activation(self.dense(x_MD)))


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
        return functional.linear(x_ME, self.weight, bias_V)


class MaskedLmHead(nn.Module):
    """Logits at masked positions."""

    def __init__(self, word_embeddings: Tensor, config: ModelConfig, ops: OpsConfig) -> None:
        super().__init__()
        self.transform = MaskedLmTransform(config, ops)
        self.decoder = TiedDecoder(word_embeddings, int(config.vocab_size))

    def forward(self, hidden_TD: Tensor, positions_M: Tensor) -> Tensor:
        """Return logits of shape (M, V).

        Only the masked positions, about 15% of the tokens, are projected to the vocabulary.
        """
        return self.decoder(self.transform(hidden_TD.index_select(0, positions_M)))


class PretrainingHeads(nn.Module):
    """The masked-language-model head and, with a sentence objective, the next-sentence head. Models call the parts."""

    def __init__(
        self, word_embeddings: Tensor, config: ModelConfig, ops: OpsConfig, *, has_sentence_objective: bool
    ) -> None:
        super().__init__()
        self.predictions = MaskedLmHead(word_embeddings, config, ops)
        self.seq_relationship = nn.Linear(config.hidden_size, 2) if has_sentence_objective else None
