"""The output folder of a fine-tuning: its settings, a folder for each seed, and the summary over the seeds."""

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from megabert.config.finetune import FREE_FIELDS
from megabert.config.loading import differences, to_dict
from megabert.errors import CheckpointError
from megabert.finetuning.setup import Prepared
from megabert.finetuning.trainer import TrainingSummary
from megabert.schema import read_json
from megabert.schema.files import atomic_write

SETTINGS_NAME = "finetune.json"
RESULT_NAME = "result.json"
SUMMARY_NAME = "results.json"

Metrics = dict[str, dict[str, float]]
"""Metrics of each evaluation set, by its name."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What ``finetune.json`` records: the fine-tuning that an output folder belongs to."""

    task: str
    settings: dict[str, Any]
    """All fields of the configuration that a resumed fine-tuning may not change."""
    sha256: dict[str, str]
    """SHA-256 of the tokenizer and of every data file."""
    model: str = ""
    """Where the model was; for reading only."""
    data: str = ""
    """Where the data were; for reading only."""


@dataclass(frozen=True, kw_only=True)
class SeedResult:
    """What the summary reads from the ``result.json`` of a seed; the file holds more."""

    seed: int
    score: float
    metrics: Metrics
    examples_per_s: float


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What ``results.json`` holds."""

    task: str
    seeds: list[int]
    mean: Metrics
    """Mean over the seeds."""
    deviation: Metrics
    """Standard deviation over the seeds, 0 for a single one."""
    examples_per_s: float
    best_seed: int
    best_model: str
    """Folder of the best seed's model."""


def claim_folder(output_dir: Path, prepared: Prepared) -> None:
    """Record which fine-tuning the folder belongs to; continue one that is the same.

    Raises:
        CheckpointError: The folder holds another fine-tuning, or something else.
    """
    fixed = {name: value for name, value in to_dict(prepared.config).items() if name not in FREE_FIELDS}
    mine = Settings(
        task=prepared.task.name,
        settings=json.loads(json.dumps(fixed)),  # as it will be read: tuples become lists
        sha256=prepared.identity,
        model=prepared.config.model,
        data=prepared.config.data,
    )
    # The same command continues the folder, another one is refused: results of two settings would be averaged.
    path = output_dir / SETTINGS_NAME
    if path.is_file():
        recorded = read_json(path, Settings, remedy="Name a new --output-dir.", error=CheckpointError)
        changes = differences(_compared(recorded), _compared(mine))
        if changes:
            lines = "\n".join(f"  {name}: {old} -> {new}" for name, (old, new) in changes.items())
            raise CheckpointError(
                f"{output_dir} holds another fine-tuning:\n{lines}\nName a new --output-dir, or return to its settings."
            )
        return
    foreign = [p.name for p in output_dir.iterdir() if not p.name.startswith(".")] if output_dir.is_dir() else []
    if foreign:
        raise CheckpointError(f"{output_dir}: holds {foreign[0]}, so it is left alone. Name a new --output-dir.")
    atomic_write(path, json.dumps(asdict(mine), indent=2, ensure_ascii=False) + "\n")


def _compared(settings: Settings) -> dict[str, Any]:
    return {"task": settings.task, "settings": settings.settings, "sha256": settings.sha256}


def seed_folder(output_dir: Path, seed: int) -> Path:
    """Return the folder of a seed's results."""
    return output_dir / f"seed_{seed}"


def is_finished(output_dir: Path, seed: int) -> bool:
    """Whether a seed has been trained and its result written."""
    return (seed_folder(output_dir, seed) / RESULT_NAME).is_file()


def write_seed_result(
    folder: Path, *, seed: int, metrics: Metrics, training: TrainingSummary, predictions: Sequence[str]
) -> None:
    """Write ``result.json``, the last file of a seed: from now on the seed counts as finished.

    Args:
        folder: Folder of the seed.
        seed: The seed.
        metrics: Metrics of each evaluation set.
        training: How the training went.
        predictions: Names of the files with predictions.
    """
    content = {"seed": seed, "metrics": metrics, **training.to_dict(), "predictions": predictions}
    atomic_write(folder / RESULT_NAME, json.dumps(content, indent=2) + "\n")


def summarize(output_dir: Path, task_name: str, seeds: Sequence[int]) -> Summary:
    """Write and return mean and deviation over the seeds, and which seed is best.

    Raises:
        CheckpointError: A seed's result is damaged.
    """
    remedy = "Delete it to train this seed again."
    paths = [seed_folder(output_dir, seed) / RESULT_NAME for seed in seeds]
    results = [read_json(path, SeedResult, remedy=remedy, error=CheckpointError) for path in paths]
    best = max(results, key=lambda result: result.score).seed
    summary = Summary(
        task=task_name,
        seeds=list(seeds),
        mean=_over_seeds(results, statistics.fmean),
        deviation=_over_seeds(results, lambda values: statistics.stdev(values) if len(values) > 1 else 0.0),
        examples_per_s=statistics.fmean(result.examples_per_s for result in results),
        best_seed=best,
        best_model=str(seed_folder(output_dir, best) / "model"),
    )
    atomic_write(output_dir / SUMMARY_NAME, json.dumps(asdict(summary), indent=2) + "\n")
    return summary


def read_summary(output_dir: Path) -> Summary:
    """Read the summary of a finished fine-tuning.

    Raises:
        CheckpointError: It is missing or damaged.
    """
    remedy = "Run the fine-tuning again: seeds that have finished are kept."
    return read_json(output_dir / SUMMARY_NAME, Summary, remedy=remedy, error=CheckpointError)


def _over_seeds(results: Sequence[SeedResult], function: Callable[[list[float]], float]) -> Metrics:
    return {
        name: {metric: function([result.metrics[name][metric] for result in results]) for metric in metrics}
        for name, metrics in results[0].metrics.items()
    }
