"""A fine-tuned model that somebody saved, read back to be scored."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from megabert.config.finetune import FinetuneConfig
from megabert.config.loading import build
from megabert.config.model import ModelConfig
from megabert.errors import CheckpointError, ConfigError
from megabert.export.config_json import read_task_fields
from megabert.export.huggingface import read_huggingface
from megabert.finetuning.families import FAMILIES
from megabert.finetuning.heads import head_by_our_names
from megabert.finetuning.model import TaskModel
from megabert.finetuning.tasks import Task
from megabert.models.convert import load_parameters

KEY = "megabert_task"
"""The field of config.json that keeps what ``megabert evaluate`` needs."""
SCORING_SETTINGS = (
    "text_column",
    "pair_column",
    "label_column",
    "language",
    "max_seq_length",
    "doc_stride",
    "max_query_length",
    "max_answer_length",
    "n_best",
    "null_threshold",
)
"""Settings that scoring depends on; the others are of training alone."""

PLACEHOLDER = re.compile(r"LABEL_\d+")
"""The names that ``transformers`` gives to the outputs of a head whose labels nobody named."""


@dataclass(frozen=True, kw_only=True)
class SavedModel:
    """The content of a fine-tuned model's folder."""

    folder: Path
    model: ModelConfig
    task_name: str | None
    """None where the folder was not written by megabert."""
    settings: dict[str, Any]
    """The recorded `SCORING_SETTINGS`."""
    labels: tuple[str, ...] | None
    """None where the head's outputs have no names."""
    encoder: dict[str, Tensor]
    """The encoder's parameters, by our names."""
    head: dict[str, Tensor]
    """All other parameters of the folder, by their names there."""

    def config(self, changes: dict[str, Any]) -> FinetuneConfig:
        """Return the recorded settings, with changes."""
        return build(FinetuneConfig, {"model": str(self.folder), "data": "", **self.settings}, changes)

    def build_model(self, task: Task, num_outputs: int) -> TaskModel:
        """Return the model in float32 on the CPU, in evaluation mode.

        Raises:
            CheckpointError: The folder has no head for this task, or one of another width.
        """
        head = FAMILIES[task.family].head
        given = head_by_our_names(self.head, self.model.family, head.architecture)
        weight, bias = f"{head.module}.weight", f"{head.module}.bias"
        if not {weight, bias} <= given.keys():
            raise CheckpointError(
                f"{self.folder}: no head for the task {task.name} ({weight} is missing). Fine-tune it first: "
                f"megabert finetune {task.name} --model {self.folder} --data ... --output-dir ..."
            )
        if len(given[weight]) != num_outputs:
            raise CheckpointError(
                f"{self.folder}: its head has {len(given[weight])} outputs, the task {task.name} needs {num_outputs}. "
                "Name the task that it was fine-tuned for."
            )
        # What the folder has beyond encoder and head, such as the heads of pre-training, is left out.
        model = TaskModel(self.model, head=head, num_outputs=num_outputs)
        needed = dict(model.named_parameters())
        state = {name: value for name, value in {**self.encoder, **given}.items() if name in needed}
        load_parameters(model, {name: value.to(torch.float32) for name, value in state.items()})
        return model.eval()


def read_saved_model(folder: Path) -> SavedModel:
    """Read a fine-tuned model, written by megabert or by another program.

    Raises:
        ConfigError, CheckpointError: There is no such folder, or it holds no BERT encoder.
    """
    if not (folder / "config.json").is_file():
        inside = sorted(folder.glob("seed_*/model"))
        hint = f"Name one of its models, such as {inside[0]}." if inside else "Name the folder of a fine-tuned model."
        raise ConfigError(f"{folder}: no config.json. {hint}")
    content = read_huggingface(folder)
    fields = read_task_fields(folder)
    settings = dict(fields.get(KEY) or {})
    names = fields.get("id2label")
    labels = tuple(str(names[key]) for key in sorted(names, key=int)) if names else ()
    return SavedModel(
        folder=folder,
        model=replace(content.config, generator_size=None),
        task_name=settings.pop("task", None),
        settings=settings,
        labels=None if all(PLACEHOLDER.fullmatch(label) for label in labels) else labels,
        encoder=content.state,
        head=content.unused,
    )
