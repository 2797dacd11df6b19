"""ELECTRA and DeBERTa 3: a masked LM proposes tokens, the encoder finds out which ones were replaced.

The generator fills the masked positions with tokens drawn from its own distribution; the discriminator then says of
every token, not of 15% only, whether it is the original. Both are trained at once, each with its own loss: no gradient
goes through the drawn tokens, so this is not adversarial training (Clark et al. 2020). DeBERTa 3 does so with DeBERTa's
encoder, another head, and embeddings whose sharing is a choice (He et al. 2023).
"""

# T packed tokens, M masked positions, D hidden, V vocabulary

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from megabert.models.bert import BertForPreTraining, BertModel, PretrainingModel, PretrainingOutput, Term
from megabert.models.embedding_sharing import DisentangledEmbedding
from megabert.models.layers import BertEmbeddings, Dense, DenseGelu, LayerNorm
from megabert.ops.cross_entropy.api import cross_entropy
from megabert.ops.dense import embedding
from megabert.ops.dropout import DropoutStream
from megabert.ops.sampling import sample
from megabert.ops.sequences import PackedBatch, sequence_numbers
from megabert.settings.config.model import ModelConfig
from megabert.settings.config.phase import PhaseConfig
from megabert.settings.config.run import OpsConfig

DISCRIMINATOR_WEIGHT = 50.0
"""Lambda, the weight of the discriminator's loss (Clark et al. 2020, section 3.1 and table 6)."""
RTD = Term("rtd", per="tokens", weight=DISCRIMINATOR_WEIGHT)
DISCRIMINATOR_MLM = Term("discriminator_mlm", per="masked")
GENERATOR_KEY = 0x2545F491
"""Arbitrary number that sets the generator's dropout apart from the discriminator's."""
SAMPLING_KEY = 0x5851F42D
"""Arbitrary number that sets the draws of replacements apart from both dropouts."""
BINS, LOGIT_LIMIT = 1024, 16.0
"""Bins of the histogram of logits, and its range to both sides of 0; logits beyond are counted in the last bin."""


class DiscriminatorPredictions(DenseGelu):
    """The discriminator's head: dense layer, activation, one logit per token.

    In DeBERTa 3 the hidden state of [CLS] is added to each token's first, and a LayerNorm follows, as in its
    authors' code.
    """

    def __init__(self, config: ModelConfig, ops: OpsConfig) -> None:
        super().__init__(config.hidden_size, config.hidden_size, config, ops)
        self.LayerNorm = (
            LayerNorm(config.hidden_size, config, ops) if config.traits.detects_beside_first_token else None
        )
        self.dense_prediction = Dense(config.hidden_size, 1)

    def forward(self, hidden_TD: Tensor, batch: PackedBatch) -> Tensor:  # type: ignore[override]
        """Return logits of shape (T,): above 0 if a token is taken for replaced."""
        if self.LayerNorm is not None:
            sequence_T = sequence_numbers(batch.cu_seqlens, len(hidden_TD))
            first_T = batch.cu_seqlens[sequence_T].clamp(max=len(hidden_TD) - 1)  # padding is a sequence of its own
            # A lookup as an embedding: its gradient adds up the tokens of a sequence in a fixed order.
            hidden_TD = self.LayerNorm(embedding(first_T, hidden_TD), hidden_TD)
        return self.dense_prediction(super().forward(hidden_TD)).squeeze(-1)


class ElectraForPreTraining(PretrainingModel):
    """Generator and discriminator, trained together; ``bert``, the discriminator, is the encoder to keep.

    ELECTRA's share all embeddings (section 3.2), so the generator, which is narrower, has a projection from their width
    to its own. DeBERTa 3's share at most the words.

    Args:
        config: Sizes of the discriminator. ``generator_size`` is the generator's share of its width, heads and
            feed-forward width, ``generator_layers`` its depth.
        ops: Backends of the fused ops; None chooses them by device.
        z_loss: Weight of the generator's z-loss, as in `BertForPreTraining`.
        encoder: Further arguments of both models' `BertModel`.
    """

    def __init__(
        self, config: ModelConfig, *, ops: OpsConfig | None = None, z_loss: float = 0.0, **encoder: Any
    ) -> None:
        super().__init__()
        ops = ops or OpsConfig()
        self.config = config
        own, generators = _embeddings(config, ops)
        self.bert = BertModel(config, ops=ops, has_pooler=False, embeddings=own, **encoder)
        self.discriminator_predictions = DiscriminatorPredictions(config, ops)
        generator: dict[str, Any] = {"objective": "none", "embeddings": generators, "dropout_key": GENERATOR_KEY}
        self.generator = BertForPreTraining(config.generator(), ops=ops, z_loss=z_loss, **generator, **encoder)
        self.terms = (*self.generator.terms, RTD)

    def begin_phase(self, phase: PhaseConfig) -> None:
        """Let the discriminator find replaced tokens, or be a masked LM, as the phase says."""
        super().begin_phase(phase)
        self.terms = (*self.generator.terms, RTD if phase.replaced_tokens else DISCRIMINATOR_MLM)

    def forward(self, batch: PackedBatch, *, with_logits: bool = False, with_hidden: bool = False) -> PretrainingOutput:
        """Return the sums of losses and of right answers; dropout is on in training mode only, sampling always.

        Args:
            batch: Packed micro-batch. One without real instances gives a loss of exactly 0 and zero gradients.
            with_logits: Whether to return the logits of both models as well.
            with_hidden: Whether to return the discriminator's last hidden states as well.
        """
        # The generator predicts the masked tokens; its logits are detached, because sampling has no gradient.
        guessed = self.generator(batch, with_logits=True)
        if RTD not in self.terms:
            output, hidden_TD = self._as_masked_lm(batch, guessed)
            logits_MV = output.mlm_logits_MV if with_logits else None
            return replace(output, mlm_logits_MV=logits_MV, hidden_TD=hidden_TD if with_hidden else None)
        ids_T, is_replaced_T = replace_tokens(batch, guessed.mlm_logits_MV.detach())
        # The discriminator judges every token; padding is left out of its sums.
        hidden_TD, _ = self.bert(batch, input_ids_T=ids_T)
        logits_T = self.discriminator_predictions(hidden_TD, batch)
        is_real_T = torch.arange(ids_T.numel(), device=ids_T.device) < batch.cu_seqlens[-1]
        losses_T = functional.binary_cross_entropy_with_logits(
            logits_T.float(), is_replaced_T.float(), reduction="none"
        )
        sums = {
            "rtd_loss_sum": (losses_T * is_real_T).sum(),
            "rtd_correct": ((logits_T > 0).eq(is_replaced_T) & is_real_T).sum(),
            "rtd_histogram": _histogram(logits_T.detach(), is_replaced_T, is_real_T),
        }
        output = replace(guessed, **sums, hidden_TD=hidden_TD if with_hidden else None)
        return replace(output, rtd_logits_T=logits_T) if with_logits else replace(output, mlm_logits_MV=None)

    def _as_masked_lm(self, batch: PackedBatch, guessed: PretrainingOutput) -> tuple[PretrainingOutput, Tensor]:
        """Return the generator's output with the losses of the discriminator as a masked LM, and its hidden states.

        It predicts by the generator's head; the logits are the generator's own.
        """
        hidden_TD, _ = self.bert(batch)
        logits_MV = self.generator.cls.predictions(hidden_TD.index_select(0, batch.masked_positions_M))
        loss_sum, correct = cross_entropy(logits_MV, batch.masked_ids_M, backend=self.generator.loss_backend)
        # Its own head is not used yet. Every parameter has to have a gradient, and this one is zero.
        unused = 0.0 * self.discriminator_predictions(hidden_TD, batch).float().sum()
        losses = {"discriminator_mlm_loss_sum": loss_sum + unused, "discriminator_mlm_correct": correct}
        return replace(guessed, **losses), hidden_TD


def _embeddings(config: ModelConfig, ops: OpsConfig) -> tuple[BertEmbeddings, BertEmbeddings]:
    """Return the embeddings of the discriminator and of the generator, shared as the configuration says."""
    if config.embedding_sharing is None:  # ELECTRA
        return (BertEmbeddings(config, ops),) * 2
    rows, width = config.padded_vocab_size, config.embedding_width
    is_disentangled = config.embedding_sharing == "disentangled"
    own = BertEmbeddings(config, ops, words=DisentangledEmbedding(rows, width) if is_disentangled else None)
    generators = BertEmbeddings(config.generator(), ops)
    if config.embedding_sharing != "separate":
        generators.word_embeddings.weight = own.word_embeddings.weight
    return own, generators


@torch.no_grad()
def replace_tokens(batch: PackedBatch, logits_MV: Tensor) -> tuple[Tensor, Tensor]:
    """Put a token drawn from the generator at each masked position.

    The draw is keyed by instance seed and position. The instance seed follows from run seed, global batch and
    instance, so a resumed run, or one on other ranks, draws the same tokens.

    Args:
        batch: Packed micro-batch.
        logits_MV: The generator's logits at the masked positions.

    Returns:
        Int64 token ids of shape (T,), and whether each differs from the original. A draw that hits the original token
        counts as original (section 3.1).
    """
    positions_M = batch.masked_positions_M
    is_padding_M = batch.masked_ids_M < 0
    seen_M = batch.input_ids_T[positions_M]
    stream = DropoutStream.from_batch(batch.instance_seeds_B ^ SAMPLING_KEY, batch.cu_seqlens, batch.position_ids_T)
    drawn_M = sample(logits_MV, stream.row_seeds_T[positions_M])
    # Padding of M points to position 0, and writes the token of that position back.
    originals_T = batch.input_ids_T.index_copy(0, positions_M, torch.where(is_padding_M, seen_M, batch.masked_ids_M))
    ids_T = originals_T.index_copy(0, positions_M, torch.where(is_padding_M, seen_M, drawn_M))
    return ids_T, ids_T != originals_T


def _histogram(logits_T: Tensor, is_replaced_T: Tensor, is_real_T: Tensor) -> Tensor:
    """Count original (row 0) and replaced (row 1) tokens by logit, int64 of shape (2, BINS)."""
    bins_T = ((logits_T.float() / LOGIT_LIMIT + 1) * (BINS // 2)).long().clamp(0, BINS - 1)
    # Padding is counted in one more bin, which is cut off: no shape depends on the data.
    bins_T = torch.where(is_real_T, bins_T + BINS * is_replaced_T, 2 * BINS)
    counts = torch.zeros(2 * BINS + 1, dtype=torch.int64, device=bins_T.device)
    return counts.scatter_add_(0, bins_T, torch.ones_like(bins_T))[: 2 * BINS].view(2, BINS)
