"""The encoder with a task's head on it."""

# T packed tokens, B sequences, M labelled positions, D hidden, C outputs

import torch
from torch import Tensor, nn

from megabert.config.model import ModelConfig
from megabert.config.run import OpsConfig
from megabert.data.batch import MicroBatch
from megabert.finetuning.families import Head
from megabert.models.bert import BertModel
from megabert.ops.dropout import EMBEDDINGS, DropoutStream, dropout


class TaskModel(nn.Module):
    """Encoder, dropout, one linear layer; parameters are named as in ``transformers``' model with the same head.

    Args:
        config: Shape of the encoder; ``vocab_size`` is a number.
        head: Name of the linear layer, and what it reads.
        num_outputs: Outputs of the linear layer.
        ops: Backends of the fused ops.
        activation_checkpointing: Whether each layer is recomputed in the backward pass, which saves memory.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        head: Head,
        num_outputs: int,
        ops: OpsConfig | None = None,
        activation_checkpointing: bool = False,
    ) -> None:
        super().__init__()
        self.config = config
        self.head = head
        self.bert = BertModel(
            config,
            ops=ops or OpsConfig(),
            has_pooler=head.reads == "pooled",
            activation_checkpointing=activation_checkpointing,
        )
        self.add_module(head.module, nn.Linear(config.hidden_size, num_outputs))

    def forward(self, batch: MicroBatch, label_positions_M: Tensor | None = None) -> Tensor:
        """Return logits of shape (B, C), (M, C) or (T, C), depending on what the head reads.

        Args:
            batch: Packed sequences.
            label_positions_M: Index into the packed tokens of each labelled position, for a head that reads these.
        """
        hidden_TD, pooled_BD = self.bert(batch)
        if self.head.reads == "tokens":  # without dropout, as in google-research/bert
            return self.get_submodule(self.head.module)(hidden_TD)
        if pooled_BD is not None:
            x, positions = pooled_BD, batch.cu_seqlens[:-1].long().clamp(max=len(hidden_TD) - 1)
        else:
            assert label_positions_M is not None
            x, positions = hidden_TD.index_select(0, label_positions_M), label_positions_M
        if self.training:
            x = self._dropped(x, positions, batch)
        return self.get_submodule(self.head.module)(x)

    def _dropped(self, x: Tensor, positions: Tensor, batch: MicroBatch) -> Tensor:
        """Drop elements, keyed like the encoder's own dropout as if the head were one more layer."""
        seeds_T = DropoutStream.of_batch(batch.instance_seeds_B, batch.cu_seqlens, batch.position_ids_T).row_seeds_T
        stream = DropoutStream(seeds_T.index_select(0, positions))
        return dropout(x, stream.site(self.config.num_hidden_layers, EMBEDDINGS, self.config.hidden_dropout_prob))


def empty_loss(logits: Tensor) -> Tensor:
    """Return a zero that still reaches every parameter, for a rank whose micro-batch has no items.

    Its backward pass has to run all the same: the other ranks wait for it where gradients are reduced.
    """
    return torch.nansum(logits.float()) * 0.0
