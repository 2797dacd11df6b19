"""BERT, RoBERTa, ALBERT, DeBERTa and ModernBERT for pre-training on packed tokens.

They are one class: what differs between them (shared weights, relative positions, sentence objective) is configuration.
A model returns a ``PretrainingOutput``, and its ``terms`` say which of the sums in it make the loss.

The code is for one device. Data parallelism, ZeRO and mixed precision are applied from outside, by the engine.
"""

# T packed tokens, B sequences, M masked positions, D hidden, V vocabulary

from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from megabert.models.encoder import BertEncoder
from megabert.models.layers import BertEmbeddings, BertPooler, Dense, PretrainingHeads, first_tokens
from megabert.ops.cross_entropy.api import cross_entropy, row_cross_entropy
from megabert.ops.dropout import DropoutStream
from megabert.ops.sequences import PackedBatch, sequence_numbers
from megabert.settings.config.families import Objective
from megabert.settings.config.model import ModelConfig
from megabert.settings.config.phase import PhaseConfig
from megabert.settings.config.run import OpsConfig

Count = Literal["masked", "instances", "tokens"]
"""The count in a mean: predicted positions, instances or tokens of the global batch."""


@dataclass(frozen=True)
class Term:
    """One summand of the loss: ``weight * sum / count``, both over the global batch.

    Micro-batches differ in masked positions and tokens, so the mean of their means would weigh positions differently.
    A model therefore returns sums, and the trainer divides them by the count over all micro-batches and ranks.
    """

    name: Literal["mlm", "weighted_mlm", "nsp", "rtd", "z", "discriminator_mlm"]
    """Masked language model; the same, each position weighted by its instance's masked share; next sentence (or
    sentence order), replaced token detection, z-loss; the discriminator's masked LM before it detects replaced
    tokens."""
    per: Count
    """The count that the sums are divided by."""
    weight: float = 1.0
    """Factor of the term in the loss."""

    @property
    def has_answers(self) -> bool:
        """Whether the term scores guesses, which are right or wrong."""
        return self.name not in ("z", "weighted_mlm")


MLM = Term("mlm", per="masked")
WEIGHTED_MLM = Term("weighted_mlm", per="tokens")
NSP = Term("nsp", per="instances")


class PretrainingModel(nn.Module):
    """A model for pre-training, as the trainer sees it; ``forward`` returns a `PretrainingOutput`."""

    config: ModelConfig
    """Sizes and family."""
    terms: tuple[Term, ...]
    """The terms that add up to the loss."""
    bert: "BertModel"
    """The encoder to keep."""

    @property
    def held_out_terms(self) -> tuple[Term, ...]:
        """The terms of a validation. Its masked LM is never weighted, so that losses of all phases and runs compare."""
        if WEIGHTED_MLM not in self.terms:
            return self.terms
        return (MLM, *(term for term in self.terms if term.name not in (MLM.name, WEIGHTED_MLM.name)))

    def begin_phase(self, phase: PhaseConfig) -> None:
        """Take the settings that a phase has for the model: ModernBERT's base of rotary positions."""
        self.bert.encoder.global_rope_theta = phase.global_rope_theta or self.config.global_rope_theta


def terms_of(model: nn.Module) -> tuple[Term, ...]:
    """Return the terms that add up to the loss of a pre-training model."""
    return cast(PretrainingModel, model).terms


@dataclass(frozen=True)
class PretrainingOutput:
    """The result of a pre-training model for one micro-batch: sums, which the trainer turns into means by ``Term``.

    Logits and hidden states are filled on request only.
    """

    mlm_loss_sum: Tensor
    """Float32 scalar, nats summed over masked positions."""
    nsp_loss_sum: Tensor
    """Float32 scalar, nats summed over instances; 0 for the objective ``none``."""
    mlm_correct: Tensor
    """Int64 scalar, masked positions whose original piece has the highest logit, or one of the highest."""
    nsp_correct: Tensor
    """Int64 scalar, instances where the label has the higher logit, or both are equal."""
    z_loss_sum: Tensor | None = None
    """Float32 scalar, squared logs of the softmax's normaliser summed over masked positions; None without z-loss."""
    weighted_mlm_loss_sum: Tensor | None = None
    """Float32 scalar, as ``mlm_loss_sum``, each position's nats divided by the share of its instance that is masked;
    None in phases without these weights."""
    rtd_loss_sum: Tensor | None = None
    """ELECTRA: float32 scalar, nats summed over tokens."""
    rtd_correct: Tensor | None = None
    """ELECTRA: int64 scalar, tokens that are rightly called original or replaced."""
    rtd_histogram: Tensor | None = None
    """ELECTRA: int64 of shape (2, bins), how many original and replaced tokens have which logit.

    Histograms can be added up over micro-batches and ranks, and give the area under the ROC curve.
    """
    discriminator_mlm_loss_sum: Tensor | None = None
    """ELECTRA, in a phase without replaced tokens: float32 scalar, as ``mlm_loss_sum``."""
    discriminator_mlm_correct: Tensor | None = None
    """ELECTRA, in a phase without replaced tokens: int64 scalar, as ``mlm_correct``."""
    mlm_logits_MV: Tensor | None = None
    """Logits at the masked positions, without the padding of the vocabulary."""
    nsp_logits_B2: Tensor | None = None
    """Logits of the sentence head."""
    rtd_logits_T: Tensor | None = None
    """ELECTRA: above 0 if a token is taken for replaced."""
    pooled_BD: Tensor | None = None
    """The pooler's output for each sequence's first token."""
    hidden_TD: Tensor | None = None
    """Last hidden states; in ELECTRA the discriminator's."""

    def loss_and_correct(self, term: Term) -> tuple[Tensor, Tensor]:
        """Return a term's sum of losses and its count of right answers, the fields that begin with its name."""
        loss_sum = getattr(self, f"{term.name}_loss_sum")
        return loss_sum, getattr(self, f"{term.name}_correct") if term.has_answers else torch.zeros_like(loss_sum)


class BertModel(nn.Module):
    """Embeddings, encoder and pooler: what fine-tuning keeps of a pre-trained model.

    Args:
        config: Sizes and family; ``vocab_size`` is a number, not ``auto``.
        ops: Backends of the fused ops.
        has_pooler: Whether there is a pooler, which reads each sequence's first token.
        activation_checkpointing: Keep only each layer's input for the backward pass, and recompute the rest there.
        embeddings: Embeddings of another model, to share them (ELECTRA's generator); None makes new ones.
        dropout_key: Combined with the instance seeds, so that two models drop different elements of one instance; 0
            leaves the seeds as they are.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        ops: OpsConfig,
        has_pooler: bool = True,
        activation_checkpointing: bool = False,
        embeddings: BertEmbeddings | None = None,
        dropout_key: int = 0,
    ) -> None:
        super().__init__()
        self.config = config
        self.dropout_key = dropout_key
        self.embeddings = embeddings or BertEmbeddings(config, ops)
        projects = config.projects_embeddings and not config.traits.norm_after_projection
        self.embeddings_project = Dense(config.embedding_width, config.hidden_size) if projects else None
        self.encoder = BertEncoder(config, ops, activation_checkpointing=activation_checkpointing)
        self.pooler = BertPooler(config) if has_pooler else None

    def forward(
        self,
        batch: PackedBatch,
        *,
        input_ids_T: Tensor | None = None,
        read_M: Tensor | None = None,
        absolute_TD: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Run the encoder; dropout is on in training mode only.

        Args:
            batch: Packed micro-batch.
            input_ids_T: Tokens to read instead of the batch's.
            read_M: Index of the tokens whose last hidden states are returned; None returns all. Otherwise the last
                layer computes everything after attention for these tokens alone, and for the first tokens if there is a
                pooler.
            absolute_TD: Embeddings of absolute positions for the enhanced mask decoder; None leaves it out.

        Returns:
            Last hidden states of shape (T, D), or (M, D), and pooled ones of shape (B, D), or None without a pooler.
        """
        stream = None
        if self.training:
            stream = DropoutStream.from_batch(
                batch.instance_seeds_B ^ self.dropout_key, batch.cu_seqlens, batch.position_ids_T
            )
        x_TD = self.embeddings(batch, stream, input_ids_T)
        if self.embeddings_project is not None:
            x_TD = self.embeddings_project(x_TD)
        if self.pooler is None:
            return self.encoder(x_TD, batch, stream, read_M, absolute_TD), None
        first_B = first_tokens(batch)
        if read_M is None:
            hidden_TD = self.encoder(x_TD, batch, stream)
            return hidden_TD, self.pooler(hidden_TD.index_select(0, first_B))
        # A token may be read twice; the rows of its two copies are equal.
        hidden_RD = self.encoder(x_TD, batch, stream, torch.cat([read_M, first_B]))
        hidden_MD, first_BD = hidden_RD.split([len(read_M), len(first_B)])
        return hidden_MD, self.pooler(first_BD)


class BertForPreTraining(PretrainingModel):
    """Encoder with the masked-language-model head and, for ``nsp`` and ``sop``, the sentence head.

    Every parameter gets a gradient: without a sentence objective there is no sentence head, and no pooler either.

    Args:
        config: Sizes and family; ``vocab_size`` is a number, not ``auto``.
        objective: ``nsp`` (Devlin et al. 2019), ``sop`` (Lan et al. 2020) or ``none``.
        ops: Backends of the fused ops; None chooses them by device.
        z_loss: Weight of the z-loss, the mean square of the log of the softmax's normaliser at masked positions
            (Chowdhery et al. 2022, section 5): it keeps logits from drifting away together. It costs one more pass over
            them, in float32; 0 leaves it out.
        encoder: Further arguments of `BertModel`.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        objective: Objective = "nsp",
        ops: OpsConfig | None = None,
        z_loss: float = 0.0,
        **encoder: Any,
    ) -> None:
        super().__init__()
        ops = ops or OpsConfig()
        has_sentence_objective = objective != "none"
        self.config = config
        self.terms = (
            MLM,
            *([NSP] if has_sentence_objective else []),
            *([Term("z", per="masked", weight=z_loss)] if z_loss else []),
        )
        self.has_z_loss = z_loss > 0
        self.loss_backend = ops.cross_entropy
        self.bert = BertModel(config, ops=ops, has_pooler=has_sentence_objective, **encoder)
        self.cls = PretrainingHeads(
            self.bert.embeddings.word_embeddings.weight, config, ops, has_sentence_objective=has_sentence_objective
        )

    def begin_phase(self, phase: PhaseConfig) -> None:
        """Weigh masked positions as the phase says; the plain masked LM is then counted, and is no part of the loss."""
        super().begin_phase(phase)
        rest = tuple(term for term in self.terms if term.name not in (MLM.name, WEIGHTED_MLM.name))
        is_weighted = phase.masked_lm_weight == "inverse_share"
        self.terms = (*((replace(MLM, weight=0.0), WEIGHTED_MLM) if is_weighted else (MLM,)), *rest)

    def forward(self, batch: PackedBatch, *, with_logits: bool = False, with_hidden: bool = False) -> PretrainingOutput:
        """Return the sums of losses and of right answers; dropout is on in training mode only.

        Args:
            batch: Packed micro-batch. One without real instances gives a loss of exactly 0 and zero gradients.
            with_logits: Whether to return logits and pooled hidden states as well.
            with_hidden: Whether to return the last hidden states of all tokens as well, which pre-training does not
                compute.
        """
        # Only the masked positions are projected to the vocabulary, and the loss is summed, not averaged: see ``Term``.
        positions_M = batch.masked_positions_M
        hidden_TD, positions = None, self.cls.position_embeddings
        if positions is not None:  # the enhanced mask decoder's hidden states are the masked LM's alone
            hidden_TD = self.bert(batch)[0] if with_hidden else None
            hidden_MD, pooled_BD = self.bert(batch, read_M=positions_M, absolute_TD=positions(batch.position_ids_T))
        elif with_hidden:
            hidden_TD, pooled_BD = self.bert(batch)
            hidden_MD = hidden_TD.index_select(0, positions_M)
        else:
            hidden_MD, pooled_BD = self.bert(batch, read_M=positions_M)
        mlm_logits_MV = self.cls.predictions(hidden_MD)
        losses_M, mlm_correct = row_cross_entropy(mlm_logits_MV, batch.masked_ids_M, backend=self.loss_backend)
        mlm_loss_sum = losses_M.sum()
        # Without a sentence objective its sums are zero, so that every output has the same fields.
        nsp_logits_B2 = None
        nsp_loss_sum, nsp_correct = torch.zeros_like(mlm_loss_sum), torch.zeros_like(mlm_correct)
        if pooled_BD is not None and self.cls.seq_relationship is not None:
            nsp_logits_B2 = self.cls.seq_relationship(pooled_BD)
            nsp_loss_sum, nsp_correct = cross_entropy(
                nsp_logits_B2, batch.next_sentence_label_B, backend=self.loss_backend
            )
        z_loss_sum = _z_loss_sum(mlm_logits_MV, batch.masked_ids_M) if self.has_z_loss else None
        output = PretrainingOutput(
            mlm_loss_sum,
            nsp_loss_sum,
            mlm_correct,
            nsp_correct,
            z_loss_sum,
            (losses_M / masked_shares(batch)).sum() if WEIGHTED_MLM in self.terms else None,
            hidden_TD=hidden_TD,
        )
        if not with_logits:
            return output
        return replace(
            output,
            mlm_logits_MV=mlm_logits_MV[:, : self.config.vocab_size],
            nsp_logits_B2=nsp_logits_B2,
            pooled_BD=pooled_BD,
        )


def masked_shares(batch: PackedBatch) -> Tensor:
    """Return for each masked position the share of its instance's tokens that is predicted, float32 of shape (M,).

    It is counted, not the share that the instance drew: a loss over it is LLaDA's for a given number of masks (Nie et
    al. 2025, equation 6), which the rounding of this number cannot bias. On padding it is 1.
    """
    # Padding of a micro-batch without instances has no sequence.
    sequence_M = sequence_numbers(batch.cu_seqlens, batch.masked_positions_M).clamp(max=len(batch.cu_seqlens) - 2)
    is_real_M, lengths_B = batch.masked_ids_M >= 0, batch.cu_seqlens.diff()
    # Sums of integers, which come out the same in any order.
    masked_B = torch.zeros_like(lengths_B).index_add_(0, sequence_M, is_real_M.to(lengths_B.dtype))
    return torch.where(is_real_M, (masked_B / lengths_B)[sequence_M], 1.0)


def _z_loss_sum(logits_MV: Tensor, labels_M: Tensor) -> Tensor:
    """Return ``log(sum(exp(logits))) ** 2`` summed over the rows whose label counts."""
    compute = torch.promote_types(logits_MV.dtype, torch.float32)
    log_normalizers_M = torch.logsumexp(logits_MV.to(compute), 1)
    return torch.where(labels_M >= 0, log_normalizers_M.square(), 0).sum()
