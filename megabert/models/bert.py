"""BERT, RoBERTa, ALBERT and DeBERTa for pre-training on packed tokens.

They are one class: what differs between them (shared weights, relative positions, sentence objective) is configuration.
The code is that of one device. Data parallelism, ZeRO and mixed precision are applied from outside, by the engine.
"""

# T packed tokens, B sequences, M masked positions, D hidden, V vocabulary

from dataclasses import replace

import torch
from torch import Tensor, nn

from megabert.config.families import Objective
from megabert.config.model import ModelConfig
from megabert.config.run import OpsConfig
from megabert.models.batch import PackedBatch
from megabert.models.embeddings import BertEmbeddings
from megabert.models.encoder import BertEncoder
from megabert.models.heads import BertPooler, PretrainingHeads
from megabert.models.objectives import MLM, NSP, PretrainingOutput
from megabert.ops.cross_entropy import cross_entropy
from megabert.ops.dropout import DropoutStream


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
        self.embeddings_project = (
            nn.Linear(config.embedding_width, config.hidden_size) if config.projects_embeddings else None
        )
        self.encoder = BertEncoder(config, ops, activation_checkpointing=activation_checkpointing)
        self.pooler = BertPooler(config) if has_pooler else None

    def forward(self, batch: PackedBatch, *, input_ids_T: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Run the encoder; dropout is on in training mode only.

        Args:
            batch: Packed micro-batch.
            input_ids_T: Tokens to read instead of the batch's.

        Returns:
            Last hidden states of shape (T, D), and pooled ones of shape (B, D), or None without a pooler.
        """
        stream = None
        if self.training:
            stream = DropoutStream.of_batch(
                batch.instance_seeds_B ^ self.dropout_key, batch.cu_seqlens, batch.position_ids_T
            )
        x_TD = self.embeddings(batch, stream, input_ids_T)
        if self.embeddings_project is not None:
            x_TD = self.embeddings_project(x_TD)
        hidden_TD = self.encoder(x_TD, batch, stream)
        return hidden_TD, None if self.pooler is None else self.pooler(hidden_TD, batch.cu_seqlens)


class BertForPreTraining(nn.Module):
    """Encoder with the masked-language-model head and, for ``nsp`` and ``sop``, the sentence head.

    Every parameter gets a gradient: without a sentence objective there is no sentence head, and no pooler either.

    Args:
        config: Sizes and family; ``vocab_size`` is a number, not ``auto``.
        objective: ``nsp`` (Devlin et al. 2019), ``sop`` (Lan et al. 2020) or ``none``.
        ops: Backends of the fused ops; None chooses them by device.
        activation_checkpointing: Keep only each layer's input for the backward pass, and recompute the rest there.
        embeddings: Embeddings of another model, to share them; None makes new ones.
        dropout_key: Combined with the instance seeds, so that two models drop different elements of one instance; 0
            leaves the seeds as they are.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        objective: Objective = "nsp",
        ops: OpsConfig | None = None,
        activation_checkpointing: bool = False,
        embeddings: BertEmbeddings | None = None,
        dropout_key: int = 0,
    ) -> None:
        super().__init__()
        ops = ops or OpsConfig()
        has_sentence_objective = objective != "none"
        self.config = config
        self.objective = objective
        self.terms = (MLM, NSP) if has_sentence_objective else (MLM,)
        self.loss_backend = ops.cross_entropy
        self.bert = BertModel(
            config,
            ops=ops,
            has_pooler=has_sentence_objective,
            activation_checkpointing=activation_checkpointing,
            embeddings=embeddings,
            dropout_key=dropout_key,
        )
        self.cls = PretrainingHeads(
            self.bert.embeddings.word_embeddings.weight, config, ops, has_sentence_objective=has_sentence_objective
        )

    def forward(self, batch: PackedBatch, *, with_logits: bool = False) -> PretrainingOutput:
        """Return the sums of losses and of right answers; dropout is on in training mode only.

        Args:
            batch: Packed micro-batch. One without real instances gives a loss of exactly 0 and zero gradients.
            with_logits: Whether to return logits and hidden states as well.
        """
        hidden_TD, pooled_BD = self.bert(batch)
        mlm_logits_MV = self.cls.predictions(hidden_TD, batch.masked_positions_M)
        mlm_loss_sum, mlm_correct = cross_entropy(mlm_logits_MV, batch.masked_ids_M, backend=self.loss_backend)
        # Without a sentence objective its sums are zero, so that every output has the same fields.
        nsp_logits_B2 = None
        nsp_loss_sum, nsp_correct = torch.zeros_like(mlm_loss_sum), torch.zeros_like(mlm_correct)
        if pooled_BD is not None and self.cls.seq_relationship is not None:
            nsp_logits_B2 = self.cls.seq_relationship(pooled_BD)
            nsp_loss_sum, nsp_correct = cross_entropy(
                nsp_logits_B2, batch.next_sentence_label_B, backend=self.loss_backend
            )
        output = PretrainingOutput(mlm_loss_sum, nsp_loss_sum, mlm_correct, nsp_correct)
        if not with_logits:
            return output
        return replace(
            output,
            mlm_logits_MV=mlm_logits_MV[:, : self.config.vocab_size],
            nsp_logits_B2=nsp_logits_B2,
            pooled_BD=pooled_BD,
            hidden_TD=hidden_TD,
        )
