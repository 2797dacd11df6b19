"""The output folder of a fine-tuning, and its summary over the seeds.

``finetune.json`` says which fine-tuning it is. A folder for each seed holds ``result.json``, which is written last and
says that the seed has finished. ``results.json`` and ``results.md`` are the summary. Metrics are fractions in files;
people read points, 100 times that.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import FiniteFloat

from megabert.downstream.finetuning.tasks import find_task
from megabert.foundation.errors import CheckpointError, ConfigError
from megabert.foundation.files import atomic_write
from megabert.foundation.json_files import read_json, write_json
from megabert.foundation.text_tables import render_table
from megabert.settings.command_line.arguments import checks_arguments
from megabert.settings.config.loading import differences

SETTINGS_NAME = "finetune.json"
RESULT_NAME = "result.json"
SUMMARY_NAME = "results.json"
TABLE_NAME = "results.md"
GRID_NAME = "grid.json"
"""In the output folder of a grid: which grid it is."""
THRESHOLD = "null_threshold"
"""The one number among the metrics that is no score."""
STUCK = 0.01
"""A score that is less than this above a constant answer's has not left it."""
UNIT = "scores in points (100 = perfect)"
"""Heading of a table of scores."""

Known = TypeVar("Known")
Recorded = TypeVar("Recorded", bound="FinetuneSettings | GridSettings")
Metrics = dict[str, dict[str, FiniteFloat]]
"""Metrics of each evaluation set, by its name."""


@dataclass(frozen=True, kw_only=True)
class FinetuneSettings:
    """The content of ``finetune.json``: the fine-tuning that an output folder belongs to."""

    task: str
    settings: dict[str, Any]
    """All fields of the configuration that a resumed fine-tuning may not change."""
    sha256: dict[str, str]
    """SHA-256 of the tokenizer and of every data file."""
    package: str | None = None
    """The package that registers the task, with its version."""
    model: str = field(default="", compare=False)
    """Where the model was; for reading only."""
    data: str = field(default="", compare=False)
    """Where the data were; for reading only."""


@dataclass(frozen=True, kw_only=True)
class GridSettings:
    """The content of ``grid.json``: the grid that an output folder belongs to."""

    settings: dict[str, Any]
    """All fields that the cells share."""
    tasks: dict[str, str]
    """The task of each set."""
    sha256: dict[str, dict[str, str]] = field(default_factory=dict)
    """SHA-256 of the tokenizer and of every data file, by set."""


@dataclass(frozen=True, kw_only=True)
class SeedResult:
    """The part of a seed's ``result.json`` that the summary needs; the file holds more."""

    seed: int
    learning_rate: float
    score: float
    metrics: Metrics
    baseline: Metrics
    """For each metric, the best score of one answer to everything."""
    examples_per_s: float


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The content of ``results.json``."""

    task: str
    learning_rate: float
    """The number that was given, or that stood for ``auto``."""
    seeds: list[int]
    stuck_seeds: list[int]
    """Seeds whose score is no better than one answer to everything."""
    mean: Metrics
    """Mean over the seeds."""
    deviation: Metrics
    """Standard deviation over the seeds, 0 for a single one."""
    baseline: Metrics
    """For each metric, the best score of one answer to everything."""
    examples_per_s: float
    best_seed: int
    best_model: str
    """Folder of the best seed's model."""
    score: float
    """Mean over the seeds of the score that picks the best weights."""
    score_deviation: float

    @checks_arguments
    def shown(self, name: str, metric: str) -> str:
        """Return a set's metric as text: the mean in points, with the deviation of several seeds."""
        mean = _known(_known(self.mean, name), metric)
        spread = f" +- {in_points(metric, self.deviation[name][metric])}" if len(self.seeds) > 1 else ""
        return in_points(metric, mean) + spread

    @property
    def score_shown(self) -> str:
        """The score that picks the best weights as text, in points."""
        spread = f" +- {in_points('', self.score_deviation)}" if len(self.seeds) > 1 else ""
        return in_points("", self.score) + spread

    @checks_arguments
    def baseline_shown(self, name: str, metric: str) -> str:
        """Return the score of one answer to everything, as text."""
        own = _known(self.baseline, name)
        return in_points(metric, own[metric]) if metric in own else "-"


def _known(values: Mapping[str, Known], name: str) -> Known:
    """Return the value of a name.

    Raises:
        ConfigError: There is no such name.
    """
    if name not in values:
        raise ConfigError(f"{name!r:.60}: no such set or metric. Known: {', '.join(values)}.")
    return values[name]


def metrics_of(summary: Summary) -> list[tuple[str, str]]:
    """Return each set with each of its metrics."""
    return [(name, metric) for name, metrics in summary.mean.items() for metric in metrics]


def in_points(name: str, value: float) -> str:
    """Return a metric's value in points; a threshold of "no answer" is a difference of logits and shown as it is."""
    return f"{value:.4f}" if name == THRESHOLD else f"{100 * value:.2f}"


def render_scores(metrics: Mapping[str, float], baseline: Mapping[str, float]) -> str:
    """Return a set's scores as a table, each beside the baseline."""
    rows = [
        (name, in_points(name, value), in_points(name, baseline[name]) if name in baseline else "-")
        for name, value in metrics.items()
    ]
    return render_table(rows, headers=("metric", "score", "constant answer"), align="lrr")


def seed_folder(output_dir: Path, seed: int) -> Path:
    """Return the folder of a seed's results."""
    return output_dir / f"seed_{seed}"


def read_settings(path: Path, cls: type[Recorded]) -> Recorded:
    """Read which fine-tuning, or which grid, a folder belongs to.

    Raises:
        CheckpointError: The file is missing or damaged.
    """
    return read_json(path, cls, remedy="Name a new --output-dir.", error=CheckpointError)


def check_folder(path: Path, mine: Recorded, *, grows: Sequence[str] = ()) -> Recorded:
    """Return the settings that a folder is to record, if it is new, or was made with the same ones.

    Args:
        path: The file that records the folder's settings.
        mine: The settings as they are now.
        grows: Fields to which a call may add names; the names of earlier calls are kept.

    Raises:
        CheckpointError: The folder holds something else, or was made with other settings: results of two settings would
            be averaged.
    """
    folder = path.parent
    if not path.is_file():
        foreign = [p.name for p in folder.iterdir() if not p.name.startswith(".")] if folder.is_dir() else []
        if foreign:
            raise CheckpointError(f"{folder}: holds {foreign[0]}, so it is left alone. Name a new --output-dir.")
        return mine
    recorded = read_settings(path, type(mine))
    grown = replace(mine, **{name: getattr(recorded, name) | getattr(mine, name) for name in grows})
    known = replace(recorded, **{name: getattr(mine, name) | getattr(recorded, name) for name in grows})
    names = [one.name for one in fields(mine) if one.compare]
    old, new = ({name: getattr(settings, name) for name in names} for settings in (known, grown))
    changes = differences(old, new)
    if changes:
        lines = "\n".join(f"  {name}: {before!r} -> {now!r}" for name, (before, now) in changes.items())
        raise CheckpointError(
            f"{folder} holds another fine-tuning, says its {path.name}:\n{lines}\n"
            "Name a new --output-dir, or return to its settings and data."
        )
    return grown


def claim_folder(path: Path, mine: Recorded, *, grows: Sequence[str] = ()) -> None:
    """Record the settings of a folder, unless they are recorded; see `check_folder`."""
    settings = check_folder(path, mine, grows=grows)
    if not path.is_file() or settings != read_settings(path, type(mine)):
        write_json(path, asdict(settings), ensure_ascii=False)


def summarize(output_dir: Path, task_name: str, seeds: Sequence[int]) -> Summary:
    """Write and return mean and deviation over the seeds, and which seed is best.

    Raises:
        CheckpointError: A seed's result is damaged.
    """
    summary = summarize_seeds(task_name, {seed: seed_folder(output_dir, seed) for seed in seeds})
    write_json(output_dir / SUMMARY_NAME, asdict(summary))
    atomic_write(output_dir / TABLE_NAME, f"# {task_name}\n\n```\n{render_summary(summary)}\n```\n")
    return summary


def summarize_seeds(task_name: str, folders: Mapping[int, Path]) -> Summary:
    """Return mean and deviation over seeds, and which seed is best.

    Args:
        task_name: The task.
        folders: The folder of each seed's result.

    Raises:
        CheckpointError: A seed's result is damaged.
    """
    remedy = "Delete it to train this seed again."
    paths = [folder / RESULT_NAME for folder in folders.values()]
    results = [read_json(path, SeedResult, remedy=remedy, error=CheckpointError) for path in paths]
    names = [{part: sorted(metrics) for part, metrics in result.metrics.items()} for result in results]
    for path, own, result in zip(paths, names, results, strict=True):
        if own != names[0] or result.baseline.keys() != own.keys():
            raise CheckpointError(f"{path}: damaged or edited (its metrics are {own}, not {names[0]}). {remedy}")
    best = max(results, key=lambda result: result.score).seed
    return Summary(
        task=task_name,
        learning_rate=results[0].learning_rate,
        seeds=list(folders),
        stuck_seeds=[one.seed for one in results if one.score < constant_score(task_name, one.baseline) + STUCK],
        **over_seeds([result.metrics for result in results]),
        baseline=results[0].baseline,
        examples_per_s=statistics.fmean(result.examples_per_s for result in results),
        best_seed=best,
        best_model=str(folders[best] / "model"),
        score=statistics.fmean(result.score for result in results),
        score_deviation=deviation([result.score for result in results]),
    )


def constant_score(task_name: str, baseline: Metrics) -> float:
    """Return the score of one answer to everything on the first set, as the task's score is computed."""
    own = next(iter(baseline.values()))
    return statistics.fmean(own[metric] for metric in find_task(task_name).metrics_in(own))


def deviation(values: Sequence[float]) -> float:
    """Return the standard deviation, 0 of a single value."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def read_summary(output_dir: Path) -> Summary:
    """Read the summary of a finished fine-tuning.

    Raises:
        CheckpointError: It is missing or damaged.
    """
    remedy = "Run the fine-tuning again: seeds that have finished are kept."
    summary = read_json(output_dir / SUMMARY_NAME, Summary, remedy=remedy, error=CheckpointError)
    means, deviations = ({name: set(own) for name, own in part.items()} for part in (summary.mean, summary.deviation))
    if means != deviations or summary.baseline.keys() != means.keys():
        raise CheckpointError(f"{output_dir / SUMMARY_NAME}: damaged or edited (its sets or metrics differ). {remedy}")
    return summary


def render_summary(summary: Summary) -> str:
    """Return the table of a summary: every set's metrics over the seeds, each beside the baseline."""
    seeds = ", ".join(map(str, summary.seeds))
    heading = f"{summary.task}: {UNIT}; " + (f"mean of seeds {seeds}" if len(summary.seeds) > 1 else f"seed {seeds}")
    rows = [
        (name, metric, summary.shown(name, metric), summary.baseline_shown(name, metric))
        for name, metric in metrics_of(summary)
    ]
    table = render_table(rows, headers=("set", "metric", "score", "constant answer"), align="llrr")
    remedy = "no better than a constant answer. Try a higher --learning-rate, more --epochs or more examples."
    stuck = [f"\nseed {seed}, at rate {summary.learning_rate:g}: {remedy}" for seed in summary.stuck_seeds]
    return f"{heading}\n{table}\nbest model  {summary.best_model}{''.join(stuck)}"


def over_seeds(metrics: Sequence[Metrics]) -> dict[str, Any]:
    """Return ``mean`` and ``deviation`` of each metric over the seeds, as fields of a `Summary`."""
    return {
        field: {
            name: {metric: function([one[name][metric] for one in metrics]) for metric in own}
            for name, own in metrics[0].items()
        }
        for field, function in (("mean", statistics.fmean), ("deviation", deviation))
    }
