"""A fine-tuned model as a folder: written for ``transformers``, read back to be scored."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from megabert.config.finetune import FinetuneConfig
from megabert.config.loading import build, to_dict
from megabert.config.model import ModelConfig
from megabert.errors import CheckpointError, ConfigError
from megabert.export.config_json import read_task_fields
from megabert.export.huggingface import TaskHead, read_huggingface, write_huggingface
from megabert.export.model_card import ModelCard
from megabert.finetuning.families import FAMILIES
from megabert.finetuning.heads import architecture_of, head_by_our_names, take_head
from megabert.finetuning.model import TaskModel
from megabert.finetuning.setup import Prepared
from megabert.finetuning.tasks import Task
from megabert.finetuning.trainer import FitResult
from megabert.models.convert import load_parameters
from megabert.observability.environment import describe_environment

KEY = "megabert_task"
"""Under which config.json keeps what ``megabert evaluate`` needs."""
KEPT = (
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
"""Settings that scoring depends on."""

PLACEHOLDER = re.compile(r"LABEL_\d+")
"""What ``transformers`` calls the outputs of a head whose labels nobody named."""


def write_result(
    folder: Path, prepared: Prepared, state: dict[str, Tensor], metrics: dict[str, dict[str, float]], fit: FitResult
) -> None:
    """Write a fine-tuned model with its card; the folder appears whole or not at all.

    Args:
        folder: New, or an earlier result.
        prepared: The task.
        state: Whole parameters by name.
        metrics: By evaluation set.
        fit: How the training went.
    """
    head, family = prepared.family.head, prepared.model.family
    encoder, weights = take_head(state, family, head.architecture)
    write_huggingface(
        folder,
        state=encoder,
        config=prepared.model,
        tokenizer_dir=prepared.source.tokenizer_dir,
        card=_card(folder, prepared, metrics, fit),
        task=TaskHead(architecture_of(family, head.architecture), _fields(prepared, metrics), weights),
    )


def _fields(prepared: Prepared, metrics: dict[str, dict[str, float]]) -> dict[str, Any]:
    family, config = prepared.family, to_dict(prepared.config)
    kept = {name: config[name] for name in KEPT} | {"max_seq_length": family.max_seq_length}
    threshold = next(iter(metrics.values())).get("null_threshold")
    if threshold is not None:
        kept["null_threshold"] = threshold
    fields: dict[str, Any] = {KEY: {"task": prepared.task.name, **kept}}
    if prepared.task.family in ("sequence", "tagging", "regression"):
        fields["id2label"] = {str(index): label for index, label in enumerate(family.labels)}
        fields["label2id"] = family.ids
    if prepared.task.family in ("sequence", "regression"):
        problem = "regression" if prepared.task.family == "regression" else "single_label_classification"
        fields["problem_type"] = problem
    return fields


def _card(folder: Path, prepared: Prepared, metrics: dict[str, dict[str, float]], fit: FitResult) -> ModelCard:
    config, head = prepared.config, prepared.family.head
    architecture = architecture_of(prepared.model.family, head.architecture)
    usage = [
        f"from transformers import AutoTokenizer, AutoModelFor{head.architecture}",
        "",
        'folder = "."  # where this file lies',
        f"model = AutoModelFor{head.architecture}.from_pretrained(folder)  # {architecture}",
        "tokenizer = AutoTokenizer.from_pretrained(folder)",
    ]
    first = next(iter(metrics))
    return ModelCard(
        name=f"{prepared.task.name}, fine-tuned",
        description=f"An encoder of the family {prepared.model.family}, fine-tuned with megabert for the task "
        f"`{prepared.task.name}`: {prepared.task.about}.",
        data={f"SHA-256 of {name}": digest for name, digest in prepared.identity.items()}
        | {"training examples or windows": f"{len(prepared.train):,}"},
        recipe={
            "started from": f"{'random weights of the shape of ' * config.random_weights}{config.model}",
            "epochs": config.epochs,
            "examples a step": config.global_batch_size,
            "learning rate": f"{config.learning_rate:g}, warm-up {config.warmup_ratio:.0%}, then linear decay",
            "weight decay": config.weight_decay,
            "dropout": f"{config.hidden_dropout_prob:g}, of attention {config.attention_probs_dropout_prob:g}",
            "longest sequence": prepared.family.max_seq_length,
            "labels": ", ".join(prepared.family.labels),
        },
        checkpoint={"chosen as": f"best on {first}", "step": f"{fit.best_step:,} of {fit.steps:,}"},
        metrics={f"{name}/{metric}": value for name, found in metrics.items() for metric, value in found.items()},
        software=describe_environment()["packages"],
        pipeline=head.pipeline,
        usage="\n".join(usage),
        metrics_of=("evaluation", first),
    )


@dataclass(frozen=True, kw_only=True)
class FineTuned:
    """A fine-tuned model that somebody saved."""

    folder: Path
    model: ModelConfig
    task_name: str | None
    """None: not by megabert."""
    settings: dict[str, Any]
    """What scoring depends on."""
    labels: tuple[str, ...] | None
    """None: the head's outputs have no names."""
    state: dict[str, Tensor]
    """Encoder by our names."""
    head: dict[str, Tensor]
    """What else the folder holds, by its names there."""

    def config(self, **changes: Any) -> FinetuneConfig:
        """Return the settings, with changes."""
        return build(FinetuneConfig, {"model": str(self.folder), "data": "", **self.settings}, changes)

    def build_model(self, task: Task, num_outputs: int) -> TaskModel:
        """Return the model in float32 on the CPU, in evaluation mode.

        Raises:
            CheckpointError: The folder has no such head.
        """
        head = FAMILIES[task.family].head
        names = [f"{head.module}.weight", f"{head.module}.bias"]
        given = head_by_our_names(self.head, self.model.family, head.architecture)
        found = {name: given[name] for name in names if name in given}
        if len(found) < len(names):
            raise CheckpointError(
                f"{self.folder}: no head for the task {task.name} ({names[0]} is missing). Fine-tune it first: "
                f"megabert finetune {task.name} --model {self.folder} --data ... --output-dir ..."
            )
        if len(found[names[0]]) != num_outputs:
            raise CheckpointError(
                f"{self.folder}: its head has {len(found[names[0]])} outputs, the task {task.name} needs {num_outputs}"
                ". Name the task that it was fine-tuned for."
            )
        model = TaskModel(self.model, head=head, num_outputs=num_outputs)
        wanted = dict(model.named_parameters())
        state = {name: value for name, value in {**self.state, **given}.items() if name in wanted}
        load_parameters(model, {name: value.to(torch.float32) for name, value in state.items()})
        return model.eval()


def open_result(folder: Path) -> FineTuned:
    """Read a fine-tuned model, of ours or of somebody's.

    Raises:
        ConfigError, CheckpointError: No such folder, or not of a BERT encoder.
    """
    if not (folder / "config.json").is_file():
        inside = sorted(folder.glob("seed_*/model"))
        hint = f"Name one of its models, such as {inside[0]}." if inside else "Name the folder of a fine-tuned model."
        raise ConfigError(f"{folder}: no config.json. {hint}")
    found = read_huggingface(folder)
    fields = read_task_fields(folder)
    settings = dict(fields.get(KEY) or {})
    names = fields.get("id2label")
    labels = tuple(str(names[key]) for key in sorted(names, key=int)) if names else ()
    return FineTuned(
        folder=folder,
        model=replace(found.config, generator_size=None),
        task_name=settings.pop("task", None),
        settings=settings,
        labels=None if all(PLACEHOLDER.fullmatch(label) for label in labels) else labels,
        state=found.state,
        head=found.unused,
    )
