"""A fine-tuned model as a folder for ``transformers``, with a model card."""

from pathlib import Path
from typing import Any

from torch import Tensor

from megabert.config.loading import to_dict
from megabert.export.huggingface import TaskHead, write_huggingface
from megabert.export.model_card import ModelCard
from megabert.finetuning.heads import architecture_of, take_head
from megabert.finetuning.results import Metrics
from megabert.finetuning.saved_model import KEY, SCORING_SETTINGS
from megabert.finetuning.setup import Prepared
from megabert.finetuning.trainer import TrainingSummary
from megabert.observability.environment import describe_environment


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
    head, family = prepared.family.head, prepared.model.family
    encoder, weights = take_head(state, family, head.architecture)
    write_huggingface(
        folder,
        state=encoder,
        config=prepared.model,
        tokenizer_dir=prepared.source.tokenizer_dir,
        card=_card(prepared, metrics, summary),
        task=TaskHead(architecture_of(family, head.architecture), _fields(prepared, metrics), weights),
    )


def _fields(prepared: Prepared, metrics: Metrics) -> dict[str, Any]:
    """Return the fields of config.json: what ``megabert evaluate`` needs, and what transformers calls the labels."""
    family, config = prepared.family, to_dict(prepared.config)
    settings = {name: config[name] for name in SCORING_SETTINGS} | {"max_seq_length": family.max_seq_length}
    threshold = next(iter(metrics.values())).get("null_threshold")
    if threshold is not None:  # the one that was best on the evaluation set, in place of "auto"
        settings["null_threshold"] = threshold
    fields: dict[str, Any] = {KEY: {"task": prepared.task.name, **settings}}
    if prepared.task.family in ("sequence", "tagging", "regression"):
        fields["id2label"] = {str(index): label for index, label in enumerate(family.labels)}
        fields["label2id"] = family.ids
    if prepared.task.family in ("sequence", "regression"):
        is_regression = prepared.task.family == "regression"
        fields["problem_type"] = "regression" if is_regression else "single_label_classification"
    return fields


def _card(prepared: Prepared, metrics: Metrics, summary: TrainingSummary) -> ModelCard:
    head = prepared.family.head
    first = next(iter(metrics))
    return ModelCard(
        name=f"{prepared.task.name}, fine-tuned",
        description=f"An encoder of the family {prepared.model.family}, fine-tuned with megabert for the task "
        f"`{prepared.task.name}`: {prepared.task.about}.",
        data={f"SHA-256 of {name}": digest for name, digest in prepared.identity.items()}
        | {"training examples or windows": f"{len(prepared.train):,}"},
        recipe=_recipe(prepared),
        checkpoint={"chosen as": f"best on {first}", "step": f"{summary.best_step:,} of {summary.steps:,}"},
        metrics={f"{name}/{metric}": value for name, scores in metrics.items() for metric, value in scores.items()},
        software=describe_environment()["packages"],
        pipeline=head.pipeline,
        usage=_usage(head.architecture, architecture_of(prepared.model.family, head.architecture)),
        metrics_of=("evaluation", first),
    )


def _recipe(prepared: Prepared) -> dict[str, Any]:
    config = prepared.config
    return {
        "started from": f"{'random weights of the shape of ' * config.random_weights}{config.model}",
        "epochs": config.epochs,
        "examples a step": config.global_batch_size,
        "learning rate": f"{config.learning_rate:g}, warm-up {config.warmup_ratio:.0%}, then linear decay",
        "weight decay": config.weight_decay,
        "dropout": f"{config.hidden_dropout_prob:g}, of attention {config.attention_probs_dropout_prob:g}",
        "longest sequence": prepared.family.max_seq_length,
        "labels": ", ".join(prepared.family.labels),
    }


def _usage(head: str, architecture: str) -> str:
    return f"""\
from transformers import AutoTokenizer, AutoModelFor{head}

folder = "."  # where this file lies
model = AutoModelFor{head}.from_pretrained(folder)  # {architecture}
tokenizer = AutoTokenizer.from_pretrained(folder)"""
