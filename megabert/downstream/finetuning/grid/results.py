"""The results of a grid: the choice among a set's settings, the tables, and the folders of one or many fine-tunings.

A grid's folder holds ``grid.json`` (which grid it is), ``results.json`` and ``results.md``, and for each set a folder
with one folder per cell. A cell is the output folder of a single run with one seed.
"""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from megabert.downstream.finetuning.grid.cells import Cell, LabelledSet, cell_name
from megabert.downstream.finetuning.results import (
    GRID_NAME,
    SETTINGS_NAME,
    SUMMARY_NAME,
    TABLE_NAME,
    UNIT,
    Summary,
    in_points,
    read_summary,
    refuse_changes,
    refuse_used_folder,
    summarize_seeds,
)
from megabert.downstream.finetuning.tasks import TASKS
from megabert.foundation.errors import CheckpointError
from megabert.foundation.files import atomic_write
from megabert.foundation.json_files import read_json
from megabert.foundation.text_tables import render_table

PICTURE_NAME = "results.png"
_AGAIN = "Run the same grid again: cells that have finished are kept."


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
class SettingScore:
    """The scores of one setting on a set."""

    learning_rate: float
    epochs: float
    failed: list[int]
    """Seeds that have not finished, such as diverged ones."""
    summary: Summary | None
    """Metrics over the seeds that have finished; None if none has."""


@dataclass(frozen=True, kw_only=True)
class SetResult:
    """The results of a grid on one set."""

    task: str
    settings: list[SettingScore]
    choice: int | None = None
    """Index of the setting with the best mean; None if every cell failed."""
    test: Summary | None = None
    """Metrics of the choice on a test set, which had no part in choosing."""
    test_sources: list[str] = field(default_factory=list)
    """SHA-256 of the test file, and of the result of each cell whose model was scored: one that is trained again has
    another result, with other times."""

    @property
    def chosen(self) -> SettingScore | None:
        """The setting with the best mean."""
        return None if self.choice is None else self.settings[self.choice]

    @property
    def summary(self) -> Summary | None:
        """Metrics of the choice over its seeds."""
        return self.chosen.summary if self.chosen else None

    @property
    def baseline(self) -> float:
        """The score of one answer to everything on the evaluation set."""
        own = next(iter(self.summary.baseline.values())) if self.summary else {}
        return statistics.fmean(own[metric] for metric in TASKS[self.task].metrics_in(own)) if own else 0.0


@dataclass(frozen=True, kw_only=True)
class GridResult:
    """The content of a grid's ``results.json``."""

    sets: dict[str, SetResult]


def grown_settings(output_dir: Path, mine: GridSettings) -> GridSettings:
    """Return a grid's settings together with the sets that its folder records of earlier calls.

    Raises:
        CheckpointError: The folder holds another grid, or something else.
    """
    path = output_dir / GRID_NAME
    if not path.is_file():
        refuse_used_folder(output_dir)
        return mine
    recorded = read_json(path, GridSettings, remedy="Name a new --output-dir.", error=CheckpointError)
    grown = replace(mine, tasks=recorded.tasks | mine.tasks, sha256=recorded.sha256 | mine.sha256)
    known = replace(recorded, tasks=mine.tasks | recorded.tasks, sha256=mine.sha256 | recorded.sha256)
    refuse_changes(path, vars(known), vars(grown))
    return grown


def choose_setting(output_dir: Path, labelled: LabelledSet, cells: Sequence[Cell], finished: set[Cell]) -> SetResult:
    """Choose the setting with the best mean over seeds on the evaluation set.

    A setting of which a seed failed is chosen only if every setting has one: its other seeds may be the lucky ones.

    Raises:
        CheckpointError: The result of a cell is damaged.
    """
    scores = []
    for setting in dict.fromkeys(cell.setting for cell in cells):
        own = [cell for cell in cells if cell.setting == setting]
        folders = {cell.seed: cell.seed_folder(output_dir) for cell in own if cell in finished}
        scores.append(
            SettingScore(
                **setting._asdict(),
                failed=[cell.seed for cell in own if cell not in finished],
                summary=summarize_seeds(labelled.task.name, folders) if folders else None,
            )
        )
    ranked = [(not one.failed, one.summary.score, -index) for index, one in enumerate(scores) if one.summary]
    return SetResult(task=labelled.task.name, settings=scores, choice=-max(ranked)[2] if ranked else None)


def save_grid(output_dir: Path, result: GridResult) -> str:
    """Write the results as ``results.json`` (fractions), their tables as ``results.md`` and a picture; return the
    tables.
    """
    from megabert.downstream.finetuning.grid.picture import draw_grid  # matplotlib, which nothing else here needs

    tables = render_grid(result)
    atomic_write(output_dir / SUMMARY_NAME, json.dumps(asdict(result), indent=2) + "\n")
    text = "\n\n".join(f"```\n{table}\n```" for table in tables)
    atomic_write(output_dir / TABLE_NAME, f"# {' '.join(result.sets)}\n\n{text}\n\n![scores]({PICTURE_NAME})\n")
    atomic_write(output_dir / PICTURE_NAME, draw_grid(result))
    return "\n\n".join(tables)


def render_grid(result: GridResult) -> list[str]:
    """Return the table of the choices, each score beside the baseline, and the table of all settings."""
    rows = [row for name, one in result.sets.items() for row in _choice_rows(name, one)]
    scores = [task_score(one.summary) for one in result.sets.values() if one.summary is not None]
    if len(result.sets) > 1 and scores:
        rows.append(("mean", f"{len(scores)} of {len(result.sets)} sets", "", in_points("", statistics.fmean(scores))))
    headers = ("set", "part", "metric", "score", "constant answer", "rate", "epochs")
    choices = render_table(rows, headers=headers, align="lllrrrr")
    settings = render_table(
        [row for name, one in result.sets.items() for row in _setting_rows(name, one)],
        headers=("set", "rate", "epochs", "score", "seeds", "failed", ""),
        align="lrrrrrl",
    )
    seeds = max(len(one.summary.seeds) for one in result.sets.values() if one.summary) if scores else 0
    of = f"; mean +- deviation over {seeds} seeds" if seeds > 1 else ""
    every = "every setting (the score is the mean of the task's metrics on the evaluation set)"
    return [f"the choices: {UNIT}{of}\n{choices}", f"{every}\n{settings}"]


def _choice_rows(name: str, result: SetResult) -> list[tuple[str, ...]]:
    one = result.chosen
    if one is None:
        return [(name, "", "every cell failed", "-")]
    place = (f"{one.learning_rate:g}", f"{one.epochs:g}")
    return [
        (name, part, metric, own.shown(part, metric), own.baseline_shown(part, metric), *place)
        for own in filter(None, (one.summary, result.test))
        for part in own.mean
        for metric in own.mean[part]
        if metric in TASKS[result.task].metrics_in(own.mean[part])
    ]


def _setting_rows(name: str, result: SetResult) -> list[tuple[str, ...]]:
    return [
        (
            name,
            f"{one.learning_rate:g}",
            f"{one.epochs:g}",
            one.summary.score_shown if one.summary else "-",
            str(len(one.summary.seeds) if one.summary else 0),
            ", ".join(map(str, one.failed)),
            "chosen" if one is result.chosen else "",
        )
        for one in result.settings
    ]


def task_score(summary: Summary) -> float:
    """Return a task's score: the mean of its metrics over all sets."""
    task = TASKS[summary.task]
    return statistics.fmean(means[metric] for means in summary.mean.values() for metric in task.metrics_in(means))


def read_grid(output_dir: Path) -> GridResult:
    """Read the results of a grid.

    Raises:
        CheckpointError: They are missing or damaged.
    """
    result = read_json(output_dir / SUMMARY_NAME, GridResult, remedy=_AGAIN, error=CheckpointError)
    for name, one in result.sets.items():
        if one.task not in TASKS or not one.settings or not 0 <= (one.choice or 0) < len(one.settings):
            raise CheckpointError(f"{output_dir / SUMMARY_NAME}: sets.{name} is damaged or edited. {_AGAIN}")
    return result


def is_grid(folder: Path) -> bool:
    """Tell whether a folder holds a grid."""
    return (folder / GRID_NAME).is_file()


def is_finetuning(folder: Path) -> bool:
    """Tell whether a folder holds a fine-tuning or a grid of them."""
    return (folder / SETTINGS_NAME).is_file() or is_grid(folder)


def read_summaries(folder: Path) -> Mapping[str, tuple[Path, Summary]]:
    """Read the summary of one fine-tuning, or of each choice of a grid, by task or set, with the best seed's run.

    Raises:
        CheckpointError: One is missing or damaged, or the folder holds no fine-tuning.
    """
    if is_grid(folder):
        found = {}
        for name, one in read_grid(folder).sets.items():
            if (chosen := one.chosen) and (summary := chosen.summary):
                cell = cell_name(chosen.learning_rate, chosen.epochs, summary.best_seed)
                found[name] = (folder / name / cell, summary)
        if not found:
            raise CheckpointError(f"{folder}: every cell of this grid failed, so there are no scores. {_AGAIN}")
        return found
    if not (folder / SETTINGS_NAME).is_file():
        names = f"no {SETTINGS_NAME}, no {GRID_NAME}"
        raise CheckpointError(f"{folder}: holds no fine-tuning ({names}). Name an --output-dir of one.")
    summary = read_summary(folder)
    return {summary.task: (folder, summary)}
