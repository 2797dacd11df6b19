"""The results of a grid: the choice among a set's settings, tables, a picture, and the folders of fine-tunings.

`render_scores_below` shows the scores of the folders in a pre-training run's.

A grid's folder holds ``grid.json`` (which grid it is), ``results.json`` and ``results.md``, and for each set a folder
with one folder per cell. A cell is the output folder of a single run with one seed.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from megabert.downstream.finetuning import seed_results
from megabert.downstream.finetuning.grid.cells import Cell, LabelledSet, cell_name
from megabert.downstream.finetuning.tasks import TASKS, find_task
from megabert.foundation.errors import CheckpointError
from megabert.foundation.files import atomic_write
from megabert.foundation.json_files import read_json, write_json
from megabert.foundation.text_tables import render_table
from megabert.settings.command_line.terminal import printable
from megabert.settings.config.extensions import registered

PICTURE_NAME = "results.png"
_DEEPEST = 3
"""How many folders below a run's a fine-tuning may lie."""
_AGAIN = "Run the same grid again: cells that have finished are kept."


@dataclass(frozen=True, kw_only=True)
class SettingScore:
    """The scores of one setting on a set."""

    learning_rate: float
    epochs: float
    failed: list[int]
    """Seeds that have not finished, such as diverged ones."""
    summary: seed_results.Summary | None
    """Metrics over the seeds that have finished; None if none has."""


@dataclass(frozen=True, kw_only=True)
class SetResult:
    """The results of a grid on one set."""

    task: str
    settings: list[SettingScore]
    choice: int | None = None
    """Index of the setting with the best mean; None if every cell failed."""
    test: seed_results.Summary | None = None
    """Metrics of the choice on a test set, which had no part in choosing."""
    test_sources: list[str] = field(default_factory=list)
    """SHA-256 of the test file, and of the result of each cell whose model was scored: one that is trained again has
    another result, with other times."""

    @property
    def chosen(self) -> SettingScore | None:
        """The setting with the best mean."""
        return None if self.choice is None else self.settings[self.choice]

    @property
    def summary(self) -> seed_results.Summary | None:
        """Metrics of the choice over its seeds."""
        return self.chosen.summary if self.chosen else None

    @property
    def baseline(self) -> float:
        """The score of one answer to everything on the evaluation set."""
        return seed_results.constant_score(self.task, self.summary.baseline) if self.summary else 0.0


@dataclass(frozen=True, kw_only=True)
class GridResult:
    """The content of a grid's ``results.json``."""

    sets: dict[str, SetResult]


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
                summary=seed_results.summarize_seeds(labelled.task.name, folders) if folders else None,
            )
        )
    ranked = [(not one.failed, one.summary.score, -index) for index, one in enumerate(scores) if one.summary]
    return SetResult(task=labelled.task.name, settings=scores, choice=-max(ranked)[2] if ranked else None)


def save_grid(output_dir: Path, result: GridResult) -> str:
    """Write the results as ``results.json`` (fractions), their tables as ``results.md`` and a picture; return the
    tables.
    """
    tables = render_grid(result)
    write_json(output_dir / seed_results.SUMMARY_NAME, asdict(result))
    text = "\n\n".join(f"```\n{table}\n```" for table in tables)
    page = f"# {' '.join(result.sets)}\n\n{text}\n\n![scores]({PICTURE_NAME})\n"
    atomic_write(output_dir / seed_results.TABLE_NAME, page)
    atomic_write(output_dir / PICTURE_NAME, draw_grid(result))
    return "\n\n".join(tables)


def render_grid(result: GridResult) -> list[str]:
    """Return the table of the choices, each score beside the baseline, and the table of all settings."""
    rows = [row for name, one in result.sets.items() for row in _choice_rows(name, one)]
    # A task's score is the mean of its metrics over all sets.
    scores = [
        statistics.fmean(own[name] for own in one.summary.mean.values() for name in find_task(one.task).metrics_in(own))
        for one in result.sets.values()
        if one.summary is not None
    ]
    if len(result.sets) > 1 and scores:
        mean = seed_results.in_points("", statistics.fmean(scores))
        rows.append(("mean", f"{len(scores)} of {len(result.sets)} sets", "", mean))
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
    return [f"the choices: {seed_results.UNIT}{of}\n{choices}", f"{every}\n{settings}"]


def _choice_rows(name: str, result: SetResult) -> list[tuple[str, ...]]:
    one = result.chosen
    if one is None:
        return [(name, "", "every cell failed", "-")]
    place = (f"{one.learning_rate:g}", f"{one.epochs:g}")
    return [
        (name, part, metric, own.shown(part, metric), own.baseline_shown(part, metric), *place)
        for own in filter(None, (one.summary, result.test))
        for part, metric in seed_results.metrics_of(own)
        if metric in find_task(result.task).metrics_in(own.mean[part])
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
            "chosen" * (one is result.chosen) + " constant answer" * bool(one.summary and one.summary.stuck_seeds),
        )
        for one in result.settings
    ]


def read_grid(output_dir: Path) -> GridResult:
    """Read the results of a grid.

    Raises:
        CheckpointError: They are missing or damaged.
    """
    path = output_dir / seed_results.SUMMARY_NAME
    result = read_json(path, GridResult, remedy=_AGAIN, error=CheckpointError)
    known = {*TASKS, *registered("task").names}
    for name, one in result.sets.items():
        if one.task not in known or not one.settings or not 0 <= (one.choice or 0) < len(one.settings):
            raise CheckpointError(f"{path}: sets.{name} is damaged or edited. {_AGAIN}")
    return result


def is_grid(folder: Path) -> bool:
    """Tell whether a folder holds a grid."""
    return (folder / seed_results.GRID_NAME).is_file()


def is_finetuning(folder: Path) -> bool:
    """Tell whether a folder holds a fine-tuning or a grid of them."""
    return (folder / seed_results.SETTINGS_NAME).is_file() or is_grid(folder)


def read_summaries(folder: Path) -> Mapping[str, tuple[Path, seed_results.Summary]]:
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
    if not (folder / seed_results.SETTINGS_NAME).is_file():
        names = f"no {seed_results.SETTINGS_NAME}, no {seed_results.GRID_NAME}"
        raise CheckpointError(f"{folder}: holds no fine-tuning ({names}). Name an --output-dir of one.")
    summary = seed_results.read_summary(folder)
    return {summary.task: (folder, summary)}


def find_finetunings(run_dir: Path) -> list[Path]:
    """Return the outermost folders of fine-tunings and grids below a folder, in the order of their names."""
    found: list[Path] = []
    level = [run_dir]
    for _ in range(_DEEPEST):
        children = [child for folder in level for child in sorted(folder.iterdir())]
        below = [child for child in children if child.is_dir() and not child.is_symlink()]
        found += [folder for folder in below if is_finetuning(folder)]
        level = [folder for folder in below if not is_finetuning(folder)]
    return sorted(found)


def render_scores_below(run_dir: Path) -> str:
    """Return a row for each metric of each fine-tuning, whose names are in its first row; empty if there is none.

    An unfinished fine-tuning, or one with damaged files, has a row that says so.
    """
    rows = []
    for folder in find_finetunings(run_dir):
        name = str(folder.relative_to(run_dir))
        try:
            summaries = read_summaries(folder)
        except CheckpointError:
            rows.append((name, "-", "-", "unfinished or damaged", "-", "-"))
            continue
        for task, (_, summary) in summaries.items():
            for part, metric in seed_results.metrics_of(summary):
                own = (summary.shown(part, metric), summary.baseline_shown(part, metric), str(len(summary.seeds)))
                rows.append((name, task, metric, *own))
                name = task = ""  # written once: of twenty fine-tunings, the eye finds where the next one begins
    if not rows:
        return ""
    headers = ("fine-tuning", "task", "metric", "score", "constant answer", "seeds")
    return f"{seed_results.UNIT}\n{render_table(rows, headers=headers, align='lllrrr')}"


COLUMNS = 3
"""Panels side by side, at most."""


def draw_grid(result: GridResult) -> bytes:
    """Return a PNG of all settings' scores: mean and deviation over seeds, the baseline, and the choice in a ring."""
    from megabert.foundation.figures import NAME_LENGTH, Figure, png_of  # matplotlib: nothing else here needs it

    columns = min(COLUMNS, len(result.sets))
    rows = -(-len(result.sets) // columns)
    figure = Figure(figsize=(4.2 * columns, 3.4 * rows), dpi=110, layout="tight")
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes, (name, one) in zip(panels, result.sets.items(), strict=False):
        _plot_set(axes, one)
        axes.set_title(printable(name)[-NAME_LENGTH:].replace("$", r"\$"))
    for axes in panels[len(result.sets) :]:
        axes.set_visible(False)
    return png_of(figure)


def _plot_set(axes: Any, result: SetResult) -> None:
    for epochs in sorted({one.epochs for one in result.settings}):
        own = sorted(
            (one.learning_rate, 100 * one.summary.score, 100 * one.summary.score_deviation)
            for one in result.settings
            if one.epochs == epochs and one.summary
        )
        if own:
            rates, scores, deviations = zip(*own, strict=True)
            axes.errorbar(rates, scores, yerr=deviations, marker="o", capsize=3, label=f"{epochs:g} epochs")
    chosen, summary = result.chosen, result.summary
    if chosen and summary:
        place = (chosen.learning_rate, 100 * summary.score)
        axes.plot(*place, "ok", markersize=13, fillstyle="none", label="chosen")
        axes.axhline(100 * result.baseline, color="tab:gray", linestyle=":", label="constant answer")
    ticks = sorted({one.learning_rate for one in result.settings})
    axes.set_xscale("log")
    axes.set_xticks(ticks, [f"{rate:g}" for rate in ticks])
    axes.minorticks_off()
    axes.set_xlabel("learning rate")
    axes.set_ylabel("score (points)")
    if axes.has_data():
        axes.legend(framealpha=0.6, fontsize=8)
