"""What a pre-training model returns, and which sums of it make the loss."""

# T packed tokens, B sequences, M masked positions, D hidden, V vocabulary

from dataclasses import dataclass
from typing import Literal, cast

from torch import Tensor, nn

Count = Literal["masked", "instances", "tokens"]
"""What a mean is taken over: predicted positions, instances or tokens of the global batch."""


@dataclass(frozen=True)
class Term:
    """One summand of the loss: ``weight * sum / count``, both over the global batch.

    Micro-batches differ in masked positions and tokens, so the mean of their means would weigh positions differently.
    A model therefore returns sums, and the trainer divides them by the count over all micro-batches and ranks.
    """

    name: Literal["mlm", "nsp", "rtd"]
    """Masked language model, next sentence (or sentence order), replaced token detection."""
    per: Count
    """The count that the sums are divided by."""
    weight: float = 1.0
    """Factor of the term in the loss."""


MLM = Term("mlm", per="masked")
NSP = Term("nsp", per="instances")


def terms_of(model: nn.Module) -> tuple[Term, ...]:
    """Return the terms that add up to the loss of a pre-training model."""
    return cast(tuple[Term, ...], model.terms)


@dataclass(frozen=True)
class PretrainingOutput:
    """What a pre-training model returns for one micro-batch: sums, which ``Term`` says how to make means of.

    Logits and hidden states are there on request only.
    """

    mlm_loss_sum: Tensor
    """Float32 scalar, nats summed over masked positions."""
    nsp_loss_sum: Tensor
    """Float32 scalar, nats summed over instances; 0 for the objective ``none``."""
    mlm_correct: Tensor
    """Int64 scalar, masked positions where no piece has a higher logit than the original one."""
    nsp_correct: Tensor
    """Int64 scalar, instances where the label has the higher logit, or both are equal."""
    rtd_loss_sum: Tensor | None = None
    """ELECTRA: float32 scalar, nats summed over tokens."""
    rtd_correct: Tensor | None = None
    """ELECTRA: int64 scalar, tokens that are rightly called original or replaced."""
    rtd_histogram: Tensor | None = None
    """ELECTRA: int64 of shape (2, bins), how many original and replaced tokens have which logit.

    Histograms can be added up over micro-batches and ranks, and give the area under the ROC curve.
    """
    mlm_logits_MV: Tensor | None = None
    """Logits at the masked positions, without the padding of the vocabulary."""
    nsp_logits_B2: Tensor | None = None
    """Logits of the sentence head."""
    rtd_logits_T: Tensor | None = None
    """ELECTRA: above 0 where a token is taken for replaced."""
    pooled_BD: Tensor | None = None
    """What the pooler makes of each sequence's first token."""
    hidden_TD: Tensor | None = None
    """Last hidden states; ELECTRA: those of the discriminator."""

    def loss_and_correct(self, term: Term) -> tuple[Tensor, Tensor]:
        """Return a term's sum of losses and its count of right answers."""
        if term.name == "mlm":
            return self.mlm_loss_sum, self.mlm_correct
        if term.name == "nsp":
            return self.nsp_loss_sum, self.nsp_correct
        assert self.rtd_loss_sum is not None
        assert self.rtd_correct is not None
        return self.rtd_loss_sum, self.rtd_correct
