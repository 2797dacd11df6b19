"""What a pre-training model returns, and which sums of it make the loss."""

# T packed tokens, B sequences, M masked positions, D hidden, V vocabulary

from dataclasses import dataclass
from typing import Literal, cast

from torch import Tensor, nn

Count = Literal["masked", "instances", "tokens"]


@dataclass(frozen=True)
class Term:
    """One part of the loss: ``weight * NAME_loss_sum / count``, the count taken over the global batch."""

    name: Literal["mlm", "nsp", "rtd"]
    """Masked language model, next sentence (or sentence order), replaced token detection."""
    per: Count
    """What its sums are divided by: predicted positions, instances or tokens."""
    weight: float = 1.0
    """Factor in the loss."""


MLM = Term("mlm", "masked")
NSP = Term("nsp", "instances")


def terms_of(model: nn.Module) -> tuple[Term, ...]:
    """Return the terms of a pre-training model's loss."""
    return cast(tuple[Term, ...], model.terms)


@dataclass(frozen=True)
class PretrainingOutput:
    """Sums over one micro-batch; the trainer divides them by counts of the global batch, see ``Term``."""

    mlm_loss_sum: Tensor
    """Float32 scalar, nats summed over masked positions."""
    nsp_loss_sum: Tensor
    """Float32 scalar, nats summed over instances; 0 for the objective ``none``."""
    mlm_correct: Tensor
    """Int64 scalar, masked positions where no logit is above the original token's."""
    nsp_correct: Tensor
    """Int64 scalar, instances where no logit is above the label's."""
    rtd_loss_sum: Tensor | None = None
    """ELECTRA: float32 scalar, nats summed over tokens."""
    rtd_correct: Tensor | None = None
    """ELECTRA: int64 scalar, tokens whose more probable label is right."""
    rtd_histogram: Tensor | None = None
    """ELECTRA: int64 of shape (2, bins), original and replaced tokens by logit, for the area under the ROC curve."""
    mlm_logits_MV: Tensor | None = None
    """On request: logits, cut to the vocabulary's size."""
    nsp_logits_B2: Tensor | None = None
    """On request and with a sentence objective."""
    rtd_logits_T: Tensor | None = None
    """On request and for ELECTRA: above 0 where a token is taken for replaced."""
    pooled_BD: Tensor | None = None
    """On request and with a sentence objective."""
    hidden_TD: Tensor | None = None
    """On request: last hidden states; ELECTRA: of the discriminator."""
