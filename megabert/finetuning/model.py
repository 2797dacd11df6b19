"""The encoder with a task's head on it, and the head's parameters as ``transformers`` names them."""

# T packed tokens, B sequences, M labelled positions, D hidden, C outputs

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from megabert.config.model import ModelConfig
from megabert.config.run import OpsConfig
from megabert.data.batch import MicroBatch
from megabert.errors import ConfigError
from megabert.finetuning.families import Head
from megabert.models.bert import BertModel
from megabert.models.key_maps import to_ours
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
        stream = DropoutStream.of_batch(batch.instance_seeds_B, batch.cu_seqlens, batch.position_ids_T)
        stream = replace(stream, row_seeds_T=stream.row_seeds_T.index_select(0, positions))
        return dropout(x, stream.site(self.config.num_hidden_layers, EMBEDDINGS, self.config.hidden_dropout_prob))


def empty_loss(logits: Tensor) -> Tensor:
    """Return a zero that still reaches every parameter, for a rank whose micro-batch has no items.

    Its backward pass has to run all the same: the other ranks wait for it where gradients are reduced.
    """
    return torch.nansum(logits.float()) * 0.0


_DENSE_AND_OUT = (("bert.pooler.dense.", "classifier.dense."), ("classifier.", "classifier.out_proj."))

HEAD_NAMES: dict[tuple[str, str], tuple[tuple[str, str], ...]] = {
    ("roberta", "SequenceClassification"): _DENSE_AND_OUT,
    ("electra", "SequenceClassification"): _DENSE_AND_OUT,
    ("electra", "MultipleChoice"): (
        ("bert.pooler.dense.", "sequence_summary.summary."),
        ("classifier.", "classifier."),
    ),
}
"""Beginnings of names, ours and theirs, for a family and a head. In other families the pooler is the encoder's own."""


NO_CLASS = {("deberta", "MultipleChoice"): "deberta-v2"}
"""Heads that ``transformers`` has no class for, and the nearest family that it has one for."""


def take_head(
    state: Mapping[str, Tensor], family: str, architecture: str
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Split a fine-tuned model into its encoder, by our names, and its head, by their names."""
    pairs = HEAD_NAMES.get((family, architecture), ())
    encoder: dict[str, Tensor] = {}
    head: dict[str, Tensor] = {}
    for name, value in state.items():
        theirs = _renamed(name, pairs)
        if theirs is None and name.startswith("bert."):
            encoder[name] = value
        else:
            head[theirs or name] = value
    return encoder, head


def head_by_our_names(head: Mapping[str, Tensor], family: str, architecture: str) -> dict[str, Tensor]:
    """Rename the parameters that a pre-training model lacks: the head, and the pooler of a family without one."""
    # Longer names first: "classifier.out_proj." begins with "classifier.".
    pairs = [(theirs, ours) for ours, theirs in HEAD_NAMES.get((family, architecture), ())]
    pairs.sort(key=lambda pair: -len(pair[0]))
    return {_renamed(name, pairs) or to_ours(name, family): value for name, value in head.items()}


def _renamed(name: str, pairs: Sequence[tuple[str, str]]) -> str | None:
    """Replace the beginning of a name by the first of the pairs that has it; None where none has."""
    return next((new + name.removeprefix(old) for old, new in pairs if name.startswith(old)), None)


def architecture_of(family: str, head: str) -> str:
    """Return the name of the class that ``transformers`` has for a family and a head.

    Raises:
        ConfigError: There is none.
    """
    if (family, head) in NO_CLASS:
        raise ConfigError(
            f"family {family}: transformers has no class of it for {head}, so the result could not be loaded. Take a "
            f"model of another family, such as {NO_CLASS[family, head]}."
        )
    return f"{''.join(part.capitalize() for part in family.split('-'))}For{head}"
