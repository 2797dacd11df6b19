"""The folder of a fine-tuned model: written for ``transformers``, and read back to be scored."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from megabert.config.loading import to_dict
from megabert.config.model import ModelConfig
from megabert.errors import CheckpointError, ConfigError
from megabert.export.config_json import read_object
from megabert.export.huggingface import TaskHead, read_huggingface, write_huggingface
from megabert.export.model_card import FAMILY_TITLES, ModelCard, facts_of
from megabert.finetuning.model import TaskModel, architecture_of, head_by_our_names, take_head
from megabert.finetuning.task_kinds import TASK_KINDS
from megabert.finetuning.tasks import Task
from megabert.models.convert import load_parameters
from megabert.observability.environment import describe_environment
from megabert.path_arguments import takes_paths
from megabert.tokenization.huggingface import download_remedy

if TYPE_CHECKING:  # these import, in the end, what reads a saved model
    from megabert.finetuning.results import Metrics
    from megabert.finetuning.setup import Prepared
    from megabert.finetuning.trainer import TrainingSummary

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


def write_model(
    folder: Path, prepared: "Prepared", state: dict[str, Tensor], metrics: "Metrics", summary: "TrainingSummary"
) -> None:
    """Write a fine-tuned model with its card; the folder appears whole or not at all.

    Args:
        folder: A new folder, or an earlier result, which is replaced.
        prepared: The fine-tuning.
        state: Whole parameters by name.
        metrics: Metrics of each evaluation set.
        summary: How the training went.
    """
    head, family = prepared.kind.head, prepared.model.family
    encoder, weights = take_head(state, family, head.architecture)
    write_huggingface(
        folder,
        state=encoder,
        config=prepared.model,
        tokenizer_dir=prepared.source.tokenizer_dir,
        card=_card(prepared, metrics, summary),
        task=TaskHead(architecture_of(family, head.architecture), _fields(prepared, metrics), weights),
    )


def _fields(prepared: "Prepared", metrics: "Metrics") -> dict[str, Any]:
    """Return the fields of config.json: what ``megabert evaluate`` needs, and what transformers calls the labels."""
    kind, config = prepared.kind, to_dict(prepared.kind.config)
    settings = {name: config[name] for name in SCORING_SETTINGS} | {"max_seq_length": kind.max_seq_length}
    threshold = next(iter(metrics.values())).get("null_threshold")
    if threshold is not None:  # the one that was best on the evaluation set, in place of "auto"
        settings["null_threshold"] = threshold
    fields: dict[str, Any] = {KEY: {"task": kind.task.name, **settings}}
    if kind.task.kind in ("sequence", "tagging", "regression"):
        fields["id2label"] = {str(index): label for index, label in enumerate(kind.labels)}
        fields["label2id"] = kind.ids
    if kind.task.kind in ("sequence", "regression"):
        is_regression = kind.task.kind == "regression"
        fields["problem_type"] = "regression" if is_regression else "single_label_classification"
    return fields


def _card(prepared: "Prepared", metrics: "Metrics", summary: "TrainingSummary") -> ModelCard:
    kind, task, config = prepared.kind, prepared.kind.task, prepared.kind.config
    first = next(iter(metrics))
    return ModelCard(
        name=f"{task.name}, fine-tuned",
        description=f"An encoder of the family {FAMILY_TITLES[prepared.model.family]}, fine-tuned with megabert for "
        f"the task `{task.name}`: {task.about}. Its scores are fractions: 1 is perfect.",
        data={f"SHA-256 of {name}": digest for name, digest in prepared.identity.items()}
        | {"training examples or windows": f"{len(prepared.train):,}"},
        recipe={
            "started from": f"{'random weights of the shape of ' * config.random_weights}{config.model}",
            "epochs": config.epochs,
            "examples a step": config.global_batch_size,
            "learning rate": f"{config.learning_rate:g}, warm-up {config.warmup_ratio:.0%}, then linear decay",
            "weight decay": config.weight_decay,
            "dropout": f"{config.hidden_dropout_prob:g}, of attention {config.attention_probs_dropout_prob:g}",
            "longest sequence": kind.max_seq_length,
            "labels": ", ".join(kind.labels),
        },
        checkpoint={"chosen as": f"best on {first}", "step": f"{summary.best_step:,} of {summary.steps:,}"},
        metrics={f"{name}/{metric}": value for name, scores in metrics.items() for metric, value in scores.items()},
        software=describe_environment()["packages"],
        pipeline=kind.head.pipeline,
        usage=_usage(kind.head.architecture, architecture_of(prepared.model.family, kind.head.architecture)),
        metrics_of=("evaluation", first),
        base_model=None if config.random_weights else config.model,
        **facts_of(Path(config.model)),
    )


def _usage(head: str, architecture: str) -> str:
    return f"""\
from transformers import AutoTokenizer, AutoModelFor{head}

folder = "."  # where this file lies
model = AutoModelFor{head}.from_pretrained(folder)  # {architecture}
tokenizer = AutoTokenizer.from_pretrained(folder)"""


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

    def build_model(self, task: Task, num_outputs: int) -> TaskModel:
        """Return the model in float32 on the CPU, in evaluation mode.

        Raises:
            CheckpointError: The folder has no head for this task, or one of another width.
        """
        head = TASK_KINDS[task.kind].head
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


@takes_paths
def read_saved_model(folder: Path) -> SavedModel:
    """Read a fine-tuned model, written by megabert or by another program.

    Raises:
        ConfigError, CheckpointError: There is no such folder, or it holds no BERT encoder.
    """
    if not (folder / "config.json").is_file():
        inside = sorted(folder.glob("seed_*/model"))
        hint = f"Name one of its models, such as {inside[0]}." if inside else download_remedy(folder)
        hint = hint or "Name the folder of a fine-tuned model."
        raise ConfigError(f"{folder}: no config.json. {hint}")
    content = read_huggingface(folder)
    fields = read_object(folder / "config.json")
    recorded = fields.get(KEY) or {}
    settings = {name: value for name, value in recorded.items() if name in SCORING_SETTINGS}
    if not isinstance(recorded.get("task", ""), str):
        raise ConfigError(f"{folder}/config.json: {KEY}.task is no name of a task. Fetch the folder again.")
    # Names that transformers made up say nothing: the labels of the task or of the file are taken instead.
    names = fields.get("id2label")
    labels = tuple(str(names[key]) for key in sorted(names, key=int)) if names else ()
    return SavedModel(
        folder=folder,
        model=replace(content.config, generator_size=None),
        task_name=recorded.get("task"),
        settings=settings,
        labels=None if all(PLACEHOLDER.fullmatch(label) for label in labels) else labels,
        encoder=content.state,
        head=content.unused,
    )
