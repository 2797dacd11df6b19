"""A fine-tuned model is scored again on a labelled file, without a trainer."""

from pathlib import Path
from typing import Any, Literal

import torch

from megabert.config.loading import nearest
from megabert.errors import ConfigError
from megabert.export.huggingface import load_fitting_tokenizer
from megabert.finetuning.evaluate import EvaluationSet, evaluate
from megabert.finetuning.families import FAMILIES
from megabert.finetuning.saved_model import SCORING_SETTINGS, read_saved_model
from megabert.finetuning.setup import find_file, sequence_length, subset
from megabert.finetuning.tasks import find_task

CHANGEABLE = (*SCORING_SETTINGS, "max_eval_examples", "micro_batch_tokens")
"""Settings that may differ from the recorded ones; the others concern training."""


def rescore(
    folder: Path,
    data: Path,
    *,
    task_name: str | None = None,
    changes: dict[str, Any] | None = None,
    predictions: Path | None = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
) -> dict[str, float]:
    """Score a fine-tuned model.

    Args:
        folder: Folder of the model, written by ``megabert finetune`` or by another program.
        data: A labelled file, or a folder with dev.* or the like.
        task_name: The task, for a folder that does not say it.
        changes: Settings to use instead of the recorded ones, such as columns.
        predictions: Where to write predictions, without a suffix; None writes none.
        device: The device to score on; ``auto`` takes a GPU if there is one.

    Returns:
        The task's metrics.

    Raises:
        ConfigError, DataError, CheckpointError: The message names place, value and remedy.
    """
    saved = read_saved_model(folder)
    name = task_name or saved.task_name
    if name is None:
        raise ConfigError(f"{folder}: its config.json does not say for which task it was fine-tuned. Say it: --task.")
    unknown = [setting for setting in changes or {} if setting not in CHANGEABLE]
    if unknown:
        raise ConfigError(f"{unknown[0]}: no setting of an evaluation{nearest(unknown[0], CHANGEABLE)}")
    config = saved.config(changes or {})
    task = find_task(name, text=config.text_column, pair=config.pair_column, label=config.label_column)
    path = data if data.is_file() else find_file(data, task.evaluation)
    reader = FAMILIES[task.family]
    examples = subset(reader.read(task, path), config.max_eval_examples)
    family = reader(
        task,
        config,
        load_fitting_tokenizer(saved.folder, saved.model),
        labels=saved.labels or task.labels or reader.labels_of(examples),
        max_seq_length=sequence_length(task, config, saved.model),
        has_segments=saved.model.type_vocab_size > 1,
    )
    torch_device = _find_device(device)
    model = saved.build_model(task, family.num_outputs).to(torch_device)
    batcher = family.batcher(family.encode(examples, is_training=False))
    with torch.no_grad():
        evaluation_set = EvaluationSet(name=path.stem, examples=examples, batcher=batcher)
        evaluation = evaluate(model, family, evaluation_set, device=torch_device)
    if predictions is not None:
        family.write(evaluation.predictions, evaluation.metrics, predictions)
    return evaluation.metrics


def _find_device(name: str) -> torch.device:
    device = torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")
    if name == "cuda" and device.type == "cpu":
        raise ConfigError("--device cuda: this machine shows no GPU. Use --device cpu.")
    return device
