"""The folder of a fine-tuned model: written for ``transformers``, read back, and scored on a labelled file."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from megabert.downstream.export.config_json import read_object, stated_length
from megabert.downstream.export.export_folder import open_export
from megabert.downstream.export.huggingface import TaskHead, load_fitting_tokenizer, read_huggingface, write_model_files
from megabert.downstream.export.model_card import ModelCard, facts_of
from megabert.downstream.export.model_folder import find_model
from megabert.downstream.export.sources import find_device
from megabert.downstream.finetuning.model import TaskModel, architecture_of, head_by_our_names, take_head
from megabert.downstream.finetuning.seed_results import THRESHOLD, UNIT, Metrics, render_scores
from megabert.downstream.finetuning.setup import USUAL_LENGTHS, Prepared, bind_kind, find_file, read_examples, subset
from megabert.downstream.finetuning.tables import as_text
from megabert.downstream.finetuning.task_kinds import TaskKind, kind_of_task
from megabert.downstream.finetuning.tasks import COLUMNS, Task, find_task, refuse_idle_settings
from megabert.downstream.finetuning.trainer import EvaluationSet, TrainingSummary, evaluate
from megabert.foundation.errors import CheckpointError, ConfigError
from megabert.models.convert import load_parameters
from megabert.observability.environment import describe_environment
from megabert.observability.logs import logger
from megabert.settings.command_line.arguments import Device
from megabert.settings.config.finetune import FinetuneConfig
from megabert.settings.config.loading import merge_layers, to_dict
from megabert.settings.config.model import ModelConfig
from megabert.settings.config.names import did_you_mean
from megabert.tokens.tokenization.huggingface import download_remedy

KEY = "megabert_task"
"""The field of config.json that keeps the settings of ``megabert evaluate``."""
ANSWER_SETTINGS = ("doc_stride", "max_query_length", "max_answer_length", "n_best", "null_threshold")
SCORING_SETTINGS = (*(f"{column}_column" for column in COLUMNS), "language", "max_seq_length", *ANSWER_SETTINGS)
"""Settings that scoring depends on; the others are of training alone."""

CHANGEABLE = (*SCORING_SETTINGS, "max_eval_examples", "micro_batch_tokens")
"""Settings that may differ from those recorded with a model; the others concern training."""

USAGE = """\
from transformers import AutoTokenizer, AutoModelFor{head}

folder = "."  # where this file lies
model = AutoModelFor{head}.from_pretrained(folder)  # {architecture}
tokenizer = AutoTokenizer.from_pretrained(folder)"""

PROBLEMS = {"sequence": "single_label_classification", "regression": "regression"}
"""transformers' ``problem_type`` of our kinds of task; other models have another meaning of the head's outputs."""
ACTIVATIONS = {"sequence": ("Identity", "Softmax"), "regression": ("Identity",)}
"""Functions that a cross-encoder may apply to these outputs, since the scores stay ours."""

PLACEHOLDER = re.compile(r"LABEL_\d+")
"""The names that ``transformers`` gives to the outputs of a head whose labels nobody named."""


def write_model(
    folder: Path, prepared: Prepared, state: dict[str, Tensor], metrics: Metrics, summary: TrainingSummary
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
    task = TaskHead(architecture_of(family, head.architecture), _fields(prepared, metrics), weights)
    card, tokenizer_dir = _card(prepared, metrics, summary), prepared.source.tokenizer_dir
    with open_export(folder) as new:
        write_model_files(new, state=encoder, config=prepared.model, tokenizer_dir=tokenizer_dir, card=card, task=task)


def _fields(prepared: Prepared, metrics: Metrics) -> dict[str, Any]:
    """Return the fields of config.json: settings of ``megabert evaluate``, and transformers' names of labels."""
    kind, config = prepared.kind, to_dict(prepared.kind.config)
    settings = {name: config[name] for name in SCORING_SETTINGS} | {"max_seq_length": kind.max_seq_length}
    # In place of "auto", the threshold that was best on the evaluation set.
    first = next(iter(metrics.values()))
    settings |= {name: value for name, value in first.items() if name == THRESHOLD}
    package = {"package": kind.task.package} if kind.task.package else {}
    fields: dict[str, Any] = {KEY: {"task": kind.task.name, **package, **settings}}
    if kind.task.kind in ("sequence", "tagging", "characters", "regression"):
        fields["id2label"] = {str(index): label for index, label in enumerate(kind.labels)}
        fields["label2id"] = kind.ids
    if kind.task.kind in PROBLEMS:
        fields["problem_type"] = PROBLEMS[kind.task.kind]
    if kind.task.kind == "regression":  # a cross-encoder would take the sigmoid of one output
        fields["sentence_transformers"] = {"activation_fn": "torch.nn.modules.linear.Identity"}
    return fields


def _card(prepared: Prepared, metrics: Metrics, summary: TrainingSummary) -> ModelCard:
    kind, task, config = prepared.kind, prepared.kind.task, prepared.kind.config
    first = next(iter(metrics))
    return ModelCard(
        name=f"{task.name}, fine-tuned",
        description=f"An encoder of the family {prepared.model.traits.title}, fine-tuned with megabert for "
        f"the task `{task.name}`: {task.about}. Its scores are fractions: 1 is perfect.",
        data={f"SHA-256 of {name}": digest for name, digest in prepared.identity.items()}
        | {"training examples or windows": f"{len(prepared.train):,}"},
        # A row per setting that a reader would want to compare.
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
        longest=prepared.longest,
        pipeline=kind.head.pipeline,
        usage=USAGE.format(
            head=kind.head.architecture, architecture=architecture_of(prepared.model.family, kind.head.architecture)
        ),
        metrics_of=("evaluation", first),
        base_model=None if config.random_weights else config.model,
        **facts_of(find_model(config.model)),
    )


class SavedModel(NamedTuple):
    """The content of a fine-tuned model's folder."""

    folder: Path
    model: ModelConfig
    task_name: str | None
    """None if the folder was not written by megabert."""
    package: str | None
    """The package that registers the task, with its version."""
    settings: dict[str, Any]
    """The recorded `SCORING_SETTINGS`."""
    labels: tuple[str, ...] | None
    """None if the head's outputs have no names."""
    problem: str | None
    """transformers' ``problem_type``."""
    activation: str
    """sentence-transformers' name of the function that a cross-encoder applies to its outputs."""
    encoder: dict[str, Tensor]
    """The encoder's parameters, by our names."""
    head: dict[str, Tensor]
    """All other parameters of the folder, by their names there."""

    def bind_kind(self, task: Task, config: FinetuneConfig, labels: tuple[str, ...]) -> TaskKind:
        """Return the task's kind, bound to this model, which reads whole texts if no length was recorded.

        Raises:
            ConfigError, DataError: A stated length or the tokenizer does not fit the model.
        """
        positions = self.model.max_position_embeddings
        longest = stated_length(self.folder, positions) or positions
        usual = min(longest, USUAL_LENGTHS.get(task.kind, longest))  # spans read a long text in windows
        tokenizer = load_fitting_tokenizer(self.folder, self.model)
        return bind_kind(task, config, self.model, tokenizer, labels, usual=usual)

    def build_model(self, task: Task, num_outputs: int) -> TaskModel:
        """Return the model in float32 on the CPU, in evaluation mode.

        Raises:
            CheckpointError: The folder has no head for this task, or one of another width.
            ConfigError: Its outputs mean something else.
        """
        head = kind_of_task(task).head
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
        self._refuse_other_meaning(task, num_outputs)
        # Other weights of the folder, such as the heads of pre-training, are left out.
        model = TaskModel(self.model, head=head, num_outputs=num_outputs)
        needed = dict(model.named_parameters())
        state = {name: value for name, value in {**self.encoder, **given}.items() if name in needed}
        load_parameters(model, {name: value.to(torch.float32) for name, value in state.items()})
        return model.eval()

    def _refuse_other_meaning(self, task: Task, num_outputs: int) -> None:
        usual = PROBLEMS.get(task.kind)
        problem = "regression" if self.problem is None and num_outputs == 1 else self.problem
        stated = f"problem_type={self.problem!r}" if self.problem else "a head of one output, which is a score"
        if usual and self.activation not in ACTIVATIONS[task.kind]:
            problem, stated = self.activation, f"a cross-encoder's activation is {self.activation}"
        if usual and problem not in (None, usual):
            raise ConfigError(
                f"{self.folder}/config.json: {stated}; the task {task.name} reads a head as {usual}, with other "
                f"scores. Use transformers, or fine-tune it: megabert finetune {task.name} --model {self.folder}."
            )


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
    unknown = [name for name in recorded if name not in ("task", "package", *SCORING_SETTINGS)]
    if unknown:
        hint = did_you_mean(unknown[0], ("task", *SCORING_SETTINGS))
        raise ConfigError(f"{folder}/config.json: {KEY}.{unknown[0]}: no setting{hint}. Fetch the folder again.")
    if not all(isinstance(recorded.get(name, ""), str) for name in ("task", "package")):
        raise ConfigError(f"{folder}/config.json: {KEY}.task or {KEY}.package is no text. Fetch the folder again.")
    # Names that transformers made up say nothing: the labels of the task or of the file are taken instead. In a folder
    # of ours they are the labels of the training file, whatever they look like.
    labels = _labels(fields, folder / "config.json")
    cross, older = fields.get("sentence_transformers") or {}, fields.get("sbert_ce_default_activation_function")
    is_named = bool(labels) if recorded else not all(PLACEHOLDER.fullmatch(label) for label in labels)
    return SavedModel(
        folder=folder,
        model=replace(content.config, generator_size=None),
        task_name=recorded.get("task"),
        package=recorded.get("package"),
        settings=settings,
        labels=labels if is_named else None,
        problem=fields.get("problem_type"),
        activation=str(cross.get("activation_fn") or older or "Identity").rpartition(".")[2],
        encoder=content.state,
        head=content.unused,
    )


def _labels(fields: Mapping[str, Any], path: Path) -> tuple[str, ...]:
    """Return the names of a head's outputs, in their order."""
    stated = (fields.get("id2label") or {}).items()
    names = {int(key): as_text("None" if name is None else name, f"{path}: id2label") for key, name in stated}
    if sorted(names) != [*range(len(names))]:
        raise ConfigError(f"{path}: id2label names {sorted(names)}. Number its labels from 0 on, without a gap.")
    ids = fields.get("label2id") or {}
    wrong = next((name for index, name in names.items() if str(ids.get(name, index)) != str(index)), None)
    if wrong is not None:
        raise ConfigError(
            f"{path}: label2id has {wrong!r} as {ids[wrong]!r}, id2label has it elsewhere. Correct the wrong one."
        )
    return tuple(name for _, name in sorted(names.items()))


class Rescored(NamedTuple):
    """The scores of a saved model on a labelled file."""

    task: str
    path: Path
    examples: int
    metrics: dict[str, float]
    baseline: dict[str, float]
    """The scores of one answer to everything."""

    def render(self) -> str:
        """Return the table of the task's metrics, each beside the baseline."""
        heading = f"{self.task}, {self.path}: {self.examples:,} examples, {UNIT}"
        return f"{heading}\n{render_scores(self.metrics, self.baseline)}"


def rescore(
    folder: Path,
    data: Path,
    *,
    task_name: str | None = None,
    changes: Mapping[str, Any] | None = None,
    predictions: Path | None = None,
    device: Device,
) -> Rescored:
    """Score a fine-tuned model, written by ``megabert finetune`` or by another program, on a labelled file.

    Args:
        folder: Folder of the model.
        data: A labelled file, or a folder with dev.* or the like.
        task_name: The task, for a folder that does not say it.
        changes: Settings to use instead of the recorded ones, such as columns.
        predictions: Where to write predictions, without a suffix; None writes none.
        device: The device to score on; ``auto`` takes a GPU if there is one.

    Raises:
        ConfigError, DataError, CheckpointError: The message names place, value and remedy.
    """
    if predictions is not None and not predictions.name:
        raise ConfigError(f"--predictions={predictions}: names no file. Give a folder and the beginning of a name.")
    saved = read_saved_model(folder)
    name = task_name or saved.task_name
    if name is None:
        raise ConfigError(f"{folder}: its config.json does not say for which task it was fine-tuned. Say it: --task.")
    # The task with its settings, its examples and its labels: the model's own, if they have names.
    config = recorded_settings(saved, changes or {})
    task = find_task(name, config, package=None if task_name else saved.package)
    refuse_idle_settings(changes or {}, [task], config, are_folders=data.is_dir())
    path = data if data.is_file() else find_file(data, task.evaluation)
    reader = kind_of_task(task)
    examples = subset(read_examples(task, path), config.max_eval_examples)
    labels = saved.labels or task.labels or reader.labels_of(examples)
    if saved.labels is None and len(labels) > 1:
        logger.warning(
            "%s: config.json does not name the labels of the outputs; they are read as %s, in this order. Other scores "
            "follow from another order: name them in id2label.",
            folder,
            ", ".join(labels),
        )
    kind = saved.bind_kind(task, config, labels)
    torch_device = find_device(device)
    model = saved.build_model(task, kind.num_outputs).to(torch_device)
    # The pass over the examples.
    with torch.no_grad():
        labelled = EvaluationSet(path.stem, examples, kind.encode(examples, is_training=False))
        rows, metrics = evaluate(model, kind, labelled, device=torch_device)
    if predictions is not None:
        kind.write(rows, metrics, predictions)
    return Rescored(name, path, len(examples), metrics, kind.baseline(examples))


def recorded_settings(saved: SavedModel, changes: Mapping[str, Any] = MappingProxyType({})) -> FinetuneConfig:
    """Return the settings recorded with a model, with changes.

    Raises:
        ConfigError: A change is no setting of an evaluation, or the recorded settings are damaged.
    """
    unknown = [setting for setting in changes if setting not in CHANGEABLE]
    if unknown:
        raise ConfigError(f"{unknown[0]}: no setting of an evaluation{did_you_mean(unknown[0], CHANGEABLE)}")
    recorded = {"model": str(saved.folder), "data": "not used", **saved.settings}
    try:
        merge_layers(FinetuneConfig, recorded)
    except ConfigError as error:
        problems = "; ".join(line.strip() for line in str(error).splitlines()[1:])
        raise ConfigError(f"{saved.folder}/config.json: {KEY}: {problems}. Fetch the folder again.") from None
    return merge_layers(FinetuneConfig, recorded, changes)
