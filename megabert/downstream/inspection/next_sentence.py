"""Does a sentence follow another one? The judgement of the head that was trained on such pairs."""

import torch

from megabert.data.batch import pack_sequences
from megabert.downstream.inspection.encode_text import check_outputs, encode_text, evaluating
from megabert.foundation.errors import ConfigError
from megabert.models.bert import BertForPreTraining, PretrainingModel
from megabert.settings.command_line.arguments import checks_arguments
from megabert.tokens.tokenization import Tokenizer


@checks_arguments
@torch.no_grad()
def next_sentence(
    model: PretrainingModel, tokenizer: Tokenizer, first: str, second: str, *, longest: int | None = None
) -> float:
    """Return the probability that the second text follows the first one (Devlin et al. 2019, section 3.1).

    A model that was trained on swapped pairs (Lan et al. 2020) gives the probability that the two are in order.

    Args:
        model: The model, on any device; its mode is restored afterwards.
        tokenizer: The model's tokenizer.
        first: First text.
        second: Second text.
        longest: Most tokens of both together; None reads the model's positions.

    Raises:
        ConfigError: The model has no head for pairs, or the two texts are longer.
    """
    if not isinstance(model, BertForPreTraining) or model.cls.seq_relationship is None:
        raise ConfigError(
            f"this model of the family {model.config.family} was not trained on pairs of sentences, so it has no head "
            "for them. Take a BERT or an ALBERT, compare pseudo-log-likelihoods, or fine-tune on pairs of your own."
        )
    encoded = encode_text(tokenizer, first, second, limit=longest or model.config.max_position_embeddings)
    has_segments = model.config.type_vocab_size > 1
    batch = pack_sequences([encoded.ids], segment_b_starts=[encoded.segment_b_start] if has_segments else None)
    with evaluating(model):
        output = model(batch.to(next(model.parameters()).device), with_logits=True)
    # Of the two classes, 0 is a true next sentence and 1 a random one.
    return float(torch.softmax(check_outputs(output.nsp_logits_B2.float()), -1)[0, 0])
