"""Scores of the fine-tunings that lie in a pre-training run's folder, in one table, each beside its baseline."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from megabert.downstream.finetuning.grid.results import is_finetuning, read_summaries
from megabert.downstream.finetuning.results import UNIT, Summary
from megabert.foundation.errors import CheckpointError
from megabert.foundation.text_tables import render_table

_DEEPEST = 3
"""How many folders below the run's a fine-tuning may lie."""


def find_finetunings(run_dir: Path) -> list[Path]:
    """Return the outermost folders of fine-tunings and grids below a folder, in the order of their names."""
    found: list[Path] = []
    level = [run_dir]
    for _ in range(_DEEPEST):
        below = [child for folder in level for child in sorted(folder.iterdir()) if _is_folder(child)]
        found += [folder for folder in below if is_finetuning(folder)]
        level = [folder for folder in below if not is_finetuning(folder)]
    return sorted(found)


def render_scores_below(run_dir: Path) -> str:
    """Return a row for each metric of each fine-tuning, whose names are in its first row; empty if there is none.

    One that has not finished, or whose files are damaged, has a row that says so.
    """
    rows = []
    for folder in find_finetunings(run_dir):
        name = str(folder.relative_to(run_dir))
        try:
            summaries = read_summaries(folder)
        except CheckpointError:
            rows.append((name, "-", "-", "unfinished or damaged", "-", "-"))
            continue
        before = None
        for task, part, metric, summary in _scores(summaries):
            # Names are written once: of twenty fine-tunings, the eye finds where the next one begins.
            names = ("" if before else name, "" if before == task else task)
            own = (summary.shown(part, metric), summary.baseline_shown(part, metric), str(len(summary.seeds)))
            rows.append((*names, metric, *own))
            before = task
    if not rows:
        return ""
    headers = ("fine-tuning", "task", "metric", "score", "constant answer", "seeds")
    return f"{UNIT}\n{render_table(rows, headers=headers, align='lllrrr')}"


def _scores(summaries: Mapping[str, tuple[Path, Summary]]) -> Iterator[tuple[str, str, str, Summary]]:
    """Yield task, part and metric of each score."""
    for task, (_, summary) in summaries.items():
        for part, metrics in summary.mean.items():
            yield from ((task, part, metric, summary) for metric in metrics)


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()
