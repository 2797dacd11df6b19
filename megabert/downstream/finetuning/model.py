"""The encoder with a task's head on it, and the head's parameters as ``transformers`` names them."""

# T packed tokens, B sequences, M labelled positions, D hidden, C outputs

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from megabert.data.batch import MicroBatch
from megabert.downstream.finetuning.task_kinds import Head
from megabert.foundation.errors import ConfigError
from megabert.models.bert import BertModel
from megabert.models.key_maps import to_ours
from megabert.models.layers import MaskedLmTransform
from megabert.ops.dropout import EMBEDDINGS, DropoutStream, dropout
from megabert.settings.config.model import ModelConfig
from megabert.settings.config.run import OpsConfig


class TaskModel(nn.Module):
    """Encoder, dropout, one linear layer; parameters are named as in ``transformers``' model with the same head.

    ModernBERT has no pooler: the input of the linear layer goes through the dense layer, GELU and LayerNorm of the
    masked-LM head, whose names and pre-trained weights they keep.

    Args:
        config: Shape of the encoder; ``vocab_size`` is a number.
        head: Name of the linear layer, and its input.
        num_outputs: Outputs of the linear layer.
        ops: Backends of the fused ops.
        encoder: Further arguments of `BertModel`.
    """

    def __init__(
        self, config: ModelConfig, head: Head, num_outputs: int, *, ops: OpsConfig | None = None, **encoder: Any
    ) -> None:
        super().__init__()
        ops = ops or OpsConfig()
        has_pooler = head.pooling == "sequence" and not config.traits.is_pre_norm
        self.config = config
        self.head = head
        self.bert = BertModel(config, ops=ops, has_pooler=has_pooler, **encoder)
        self.cls = None
        if config.traits.is_pre_norm:
            transform = MaskedLmTransform(config, ops)
            self.cls = nn.ModuleDict({"predictions": nn.ModuleDict({"transform": transform})})
        self.add_module(head.module, nn.Linear(config.hidden_size, num_outputs))

    def forward(self, batch: MicroBatch, label_positions_M: Tensor | None = None) -> Tensor:
        """Return logits of shape (B, C), (M, C) or (T, C), depending on the head's input.

        Args:
            batch: Packed sequences.
            label_positions_M: Index into the packed tokens of each labelled position, for a head that reads these.
        """
        hidden_TD, pooled_BD = self.bert(batch)
        if self.config.classifier_pooling == "mean" and self.head.pooling == "sequence":
            pooled_BD = mean_of_sequences(hidden_TD, batch.cu_seqlens)
        if self.head.pooling == "tokens":  # without dropout, as in google-research/bert
            return self.get_submodule(self.head.module)(self._transformed(hidden_TD))
        if self.head.pooling == "sequence":
            positions = batch.cu_seqlens[:-1].long().clamp(max=len(hidden_TD) - 1)
        else:
            assert label_positions_M is not None
            positions = label_positions_M
        x = self._transformed(hidden_TD.index_select(0, positions) if pooled_BD is None else pooled_BD)
        if self.training:
            # Dropout is keyed like the encoder's own, as if the head were one more layer.
            stream = DropoutStream.from_batch(batch.instance_seeds_B, batch.cu_seqlens, batch.position_ids_T)
            site = stream.at(positions).site(self.config.num_hidden_layers, EMBEDDINGS, self.config.hidden_dropout_prob)
            x = dropout(x, site)
        return self.get_submodule(self.head.module)(x)

    def _transformed(self, x: Tensor) -> Tensor:
        return x if self.cls is None else self.get_submodule("cls.predictions.transform")(x)


def mean_of_sequences(hidden_TD: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Return the mean of each sequence's hidden states, of shape (B, D); a sequence without tokens gives zeros."""
    token_T = torch.arange(len(hidden_TD), device=cu_seqlens.device)
    is_own_BT = (token_T >= cu_seqlens[:-1, None]) & (token_T < cu_seqlens[1:, None])
    # A matrix product: sums by index would be atomic on a GPU, in an order that changes from run to run.
    return is_own_BT.to(hidden_TD.dtype) @ hidden_TD / cu_seqlens.diff().clamp(min=1)[:, None].to(hidden_TD.dtype)


def empty_loss(logits: Tensor) -> Tensor:
    """Return a zero that still reaches every parameter, for a rank whose micro-batch has no items.

    Its backward pass has to run all the same: the other ranks wait for it where gradients are reduced.
    """
    return torch.nansum(logits.float()) * 0.0


_DENSE_AND_OUT = (("bert.pooler.dense.", "classifier.dense."), ("classifier.", "classifier.out_proj."))

HEAD_NAMES: dict[tuple[str, str], tuple[tuple[str, str], ...]] = {
    ("roberta", "SequenceClassification"): _DENSE_AND_OUT,
    ("electra", "SequenceClassification"): _DENSE_AND_OUT,
    ("electra", "MultipleChoice"): (("bert.pooler.dense.", "sequence_summary.summary."), ("classifier.",) * 2),
    ("modernbert", "QuestionAnswering"): (("qa_outputs.", "classifier."),),
}
"""Beginnings of names, ours and theirs, for a family and a head. In other families the pooler is the encoder's own."""


CLASS_NAMES = {"deberta-v3": "DebertaV2", "modernbert": "ModernBert"}
"""Beginnings of names of classes that do not follow from the family's."""

NO_CLASS = {("deberta", "MultipleChoice"): "deberta-v2"}
"""Heads that ``transformers`` has no class for, and the nearest family that it has one for."""


def take_head(
    state: Mapping[str, Tensor], family: str, architecture: str
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Split a fine-tuned model into its encoder, by our names, and its head, by their names."""
    pairs = HEAD_NAMES.get((family, architecture), ())
    theirs = {name: _renamed(name, pairs) for name in state}
    encoder = {name for name in state if theirs[name] is None and name.startswith(("bert.", "cls."))}
    head = {theirs[name] or name: value for name, value in state.items() if name not in encoder}
    return {name: value for name, value in state.items() if name in encoder}, head


def head_by_our_names(head: Mapping[str, Tensor], family: str, architecture: str) -> dict[str, Tensor]:
    """Rename the parameters that a pre-training model lacks: the head, and the pooler of a family without one."""
    # Longer names first: "classifier.out_proj." begins with "classifier.".
    pairs = [(theirs, ours) for ours, theirs in HEAD_NAMES.get((family, architecture), ())]
    pairs.sort(key=lambda pair: -len(pair[0]))
    return {_renamed(name, pairs) or to_ours(name, family): value for name, value in head.items()}


def _renamed(name: str, pairs: Sequence[tuple[str, str]]) -> str | None:
    """Replace the beginning of a name by the first pair that has it; None if no pair has."""
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
    name = CLASS_NAMES.get(family, "".join(part.capitalize() for part in family.split("-")))
    return f"{name}For{head}"
