"""Scoring: one pass over a set with the present weights, or with those of a fine-tuned model's folder."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from megabert.config.finetune import FinetuneConfig
from megabert.config.loading import merge_layers
from megabert.config.names import did_you_mean
from megabert.data.batch import MicroBatch
from megabert.distributed.process_group import World
from megabert.errors import CheckpointError, ConfigError
from megabert.export.huggingface import load_fitting_tokenizer
from megabert.export.sources import find_device
from megabert.finetuning.batches import Batcher
from megabert.finetuning.saved_model import KEY, SCORING_SETTINGS, SavedModel, read_saved_model
from megabert.finetuning.scores import UNIT, render_scores
from megabert.finetuning.setup import bind_kind, find_file, subset
from megabert.finetuning.task_kinds import TASK_KINDS, Example, Prediction, TaskKind
from megabert.finetuning.tasks import find_task
from megabert.observability.progress import Progress
from megabert.path_arguments import takes_paths

CHANGEABLE = (*SCORING_SETTINGS, "max_eval_examples", "micro_batch_tokens")
"""Settings that may differ from those recorded with a model; the others concern training."""


@dataclass(frozen=True, kw_only=True)
class EvaluationSet:
    """Examples, encoded and distributed over the ranks."""

    name: str
    """Stem of the set's file, or ``held_out``."""
    examples: Sequence[Example]
    batcher: Batcher


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The result of one pass over a set."""

    predictions: list[Prediction]
    """One prediction an example, as it is written to a file."""
    metrics: dict[str, float]


Forward = Callable[[MicroBatch, Tensor | None], Tensor]
"""Takes packed sequences and the labelled positions, if the task has any; returns logits."""


def evaluate(
    forward: Forward,
    kind: TaskKind,
    data: EvaluationSet,
    *,
    device: torch.device,
    world: World | None = None,
) -> Evaluation:
    """Score a set; every rank of a world calls it, with a model in evaluation mode."""
    features = data.batcher.features
    mine: list[tuple[NDArray, NDArray]] = []
    ranks, is_main = (world.size, world.is_main) if world else (1, True)
    with Progress(title=data.name, total=len(features), unit="example", is_main=is_main) as progress:
        for batch in data.batcher.all():
            on_device = batch.to(device)
            logits = forward(on_device.inputs, on_device.label_positions_M).detach().float().cpu().numpy()
            mine.append((batch.items, logits[: features.rows[batch.items].sum()]))
            progress.advance(len(batch.items) * ranks, is_reported=False)
    # Packing mixes the items: put the rows of each, of shape (rows, outputs), back where the item belongs.
    logits_of_items: list[NDArray] = [np.empty(0)] * len(features)
    for parts in world.gather(mine) if world else [mine]:
        for items, logits in parts:
            if len(items):
                ends = np.cumsum(features.rows[items])[:-1]
                for item, rows in zip(items, np.split(logits, ends), strict=True):
                    logits_of_items[item] = rows
    if not all(np.isfinite(rows).all() for rows in logits_of_items):
        raise CheckpointError(
            f"{data.name}: the model's outputs are NaN or infinite: its weights are damaged, or have diverged. Take "
            "another model, or a lower learning_rate."
        )
    predictions = kind.predict(logits_of_items, data.examples, features)
    return Evaluation(predictions=predictions, metrics=kind.score(predictions, data.examples))


@takes_paths
def rescore(
    folder: Path,
    data: Path,
    *,
    task_name: str | None,
    changes: Mapping[str, Any],
    predictions: Path | None,
    device: Literal["auto", "cpu", "cuda"],
) -> str:
    """Score a fine-tuned model, written by ``megabert finetune`` or by another program, on a labelled file.

    Args:
        folder: Folder of the model.
        data: A labelled file, or a folder with dev.* or the like.
        task_name: The task, for a folder that does not say it.
        changes: Settings to use instead of the recorded ones, such as columns.
        predictions: Where to write predictions, without a suffix; None writes none.
        device: The device to score on; ``auto`` takes a GPU if there is one.

    Returns:
        The table of the task's metrics, each beside what one answer to everything scores.

    Raises:
        ConfigError, DataError, CheckpointError: The message names place, value and remedy.
    """
    if predictions is not None and not predictions.name:
        raise ConfigError(f"--predictions={predictions}: names no file. Give a folder and the beginning of a name.")
    saved = read_saved_model(folder)
    name = task_name or saved.task_name
    if name is None:
        raise ConfigError(f"{folder}: its config.json does not say for which task it was fine-tuned. Say it: --task.")
    config = _settings(saved, changes)
    task = find_task(name, config)
    path = data if data.is_file() else find_file(data, task.evaluation)
    reader = TASK_KINDS[task.kind]
    examples = subset(reader.read(task, path), config.max_eval_examples)
    labels = saved.labels or task.labels or reader.labels_of(examples)
    kind = bind_kind(task, config, saved.model, load_fitting_tokenizer(folder, saved.model), labels)
    torch_device = find_device(device)
    model = saved.build_model(task, kind.num_outputs).to(torch_device)
    batcher = kind.batcher(kind.encode(examples, is_training=False))
    with torch.no_grad():
        labelled = EvaluationSet(name=path.stem, examples=examples, batcher=batcher)
        evaluation = evaluate(model, kind, labelled, device=torch_device)
    if predictions is not None:
        kind.write(evaluation.predictions, evaluation.metrics, predictions)
    heading = f"{name}, {path}: {len(examples):,} examples, {UNIT}"
    return f"{heading}\n{render_scores(evaluation.metrics, kind.baseline(examples))}"


def _settings(saved: SavedModel, changes: Mapping[str, Any]) -> FinetuneConfig:
    """Return the settings recorded with a model, with changes."""
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
