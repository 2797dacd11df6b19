"""Predictions of finished fine-tunings, read back to look at: which are wrong, and how wrong.

Two fine-tunings of a task stand side by side: scores, settings, and which examples one of them fixed or broke.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from megabert.downstream.finetuning import seed_results
from megabert.downstream.finetuning.grid.grid_results import read_summaries
from megabert.foundation.errors import CheckpointError, ConfigError, DataError
from megabert.foundation.json_files import read_json_lines
from megabert.foundation.text_tables import render_table
from megabert.settings.config.loading import differences

MOST_LABELS = 20
"""A table of confusions with more labels is not shown."""
_SHOWN = 160
"""Characters of a text that are shown."""
LABELS = ("label", "tags", "answers")
"""Fields that hold the right answer, depending on the kind of task."""

Rows = dict[int, dict[str, Any]]
"""The rows of a file of predictions by the line of their example."""


def read_predictions(output_dir: Path, summary: seed_results.Summary, name: str) -> Rows:
    """Read the predictions of the best seed for one evaluation set.

    Raises:
        CheckpointError: The file is missing or damaged.
    """
    path = seed_results.seed_folder(output_dir, summary.best_seed) / f"predictions_{name}.jsonl"
    remedy = "Delete the seed's result.json and run the fine-tuning again."
    rows: Rows = {}
    try:
        for number, row in read_json_lines(path, dict[str, Any], remedy=""):
            if not _is_sound(row):
                raise DataError(f"{path}:{number}: is no prediction of an example.")
            rows[row["line"]] = row
    except DataError as error:
        raise CheckpointError(f"{str(error).strip()} {remedy}") from None
    return rows


def _is_sound(row: Mapping[str, Any]) -> bool:
    """Tell whether a row has all the fields that are needed here, in the types that were written."""
    values = _probabilities(row) if "probabilities" in row else [1.0]
    has_values = isinstance(values, list) and values and all(isinstance(value, float | int) for value in values)
    has_judgement = isinstance(row.get("correct"), bool) or isinstance(row.get("error"), float | int)
    labels = (row.get("label"), row.get("prediction")) if isinstance(row.get("probabilities"), dict) else ()
    has_labels = "prediction" in row and all(isinstance(label, str) for label in labels)
    return isinstance(row.get("line"), int) and bool(has_values) and has_judgement and has_labels


def _probabilities(row: Mapping[str, Any]) -> list[float]:
    """Return the probabilities of all answers; none for a kind of task that gives none."""
    probabilities = row.get("probabilities", [])
    return list(probabilities.values()) if isinstance(probabilities, dict) else probabilities


def goodness(row: Mapping[str, Any]) -> float:
    """Return how good a prediction is, to compare two of them: whether it is correct, or minus its distance."""
    return float(row["correct"]) if "correct" in row else -abs(float(row["error"]))


def describe_example(row: Mapping[str, Any]) -> str:
    """Return an example in two lines: its place and its texts, then its label."""
    own = {"line", "id", "prediction", "correct", "error", "probabilities"}
    own |= {"f1", "rouge_w", "answer", "null_odds", "n_best"}
    texts = [_shown(value) for name, value in row.items() if name not in own and name not in LABELS]
    label = next((_shown(row[name]) for name in LABELS if name in row), "")
    identity = f" ({row['id']})" if "id" in row else ""
    return f"line {row['line']}{identity}: {' | '.join(texts)}\n    label {label}"


def render_prediction(row: Mapping[str, Any]) -> str:
    """Return a prediction, with its probability if it has one."""
    probabilities = _probabilities(row)
    return _shown(row["prediction"]) + (f" ({max(probabilities):.2f})" if probabilities else "")


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 4]} ..."


def render_report(output_dir: Path, summary: seed_results.Summary, *, examples: int) -> str:
    """Return scores, confusions of labels, and the surest errors of the best seed's predictions.

    Raises:
        CheckpointError: Predictions are missing or damaged.
    """
    blocks = [seed_results.render_summary(summary)]
    for name in summary.mean:
        rows = list(read_predictions(output_dir, summary, name).values())
        blocks += [block for block in (_confusions(name, rows), _errors(name, rows, examples)) if block]
    return "\n\n".join(blocks)


def _confusions(name: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a table of right and predicted labels; nothing for tasks without labels."""
    labels = rows[0].get("probabilities") if rows else None
    if not isinstance(labels, dict) or len(labels) > MOST_LABELS:
        return ""
    counts = Counter((row["label"], row["prediction"]) for row in rows)
    table = [(label, *(counts[label, other] for other in labels)) for label in labels]
    headers = (f"{name}: label", *(f"said {label}" for label in labels))
    return render_table(table, headers=headers, align="l" + "r" * len(labels))


def _errors(name: str, rows: Sequence[Mapping[str, Any]], examples: int) -> str:
    """Return the errors of which the model was surest, or the largest ones."""

    def sureness(row: Mapping[str, Any]) -> float:
        return max(_probabilities(row), default=0.0) if "correct" in row else abs(row["error"])

    wrong = sorted((row for row in rows if goodness(row) < ("correct" in row)), key=sureness, reverse=True)
    chosen = wrong[:examples]
    heading = f"{name}: {len(wrong):,} of {len(rows):,} are not exact; the first {len(chosen)}, surest or largest first"
    lines = (f"  {describe_example(row)}, said {render_prediction(row)}" for row in chosen)
    return "\n".join([heading, *lines]) if chosen else ""


_EXAMPLE = ("line", "id", "text", "pair", "context", "question", "start", "endings", "tokens", *LABELS)
"""Fields of a prediction that its example has given."""


@dataclass(frozen=True)
class SetComparison:
    """The predictions of two models for one evaluation set."""

    task: str
    name: str
    a: Rows
    b: Rows
    fixed: list[int]
    """Lines of the examples that B has right or nearer and A has not, the largest gain first."""
    broken: list[int]
    """Lines of the examples that A has right or nearer."""

    @cached_property
    def p_value(self) -> float:
        """How likely so uneven a split of the changes is if both models are equally good (sign test, two-sided)."""
        from scipy.stats import binomtest  # a second, which reports do not need

        changes = len(self.fixed) + len(self.broken)
        return float(binomtest(len(self.fixed), changes).pvalue) if changes else 1.0


class FinetuningComparison(NamedTuple):
    """Two fine-tunings, or two folders of them, side by side."""

    folders: tuple[Path, Path]
    settings: dict[str, dict[str, tuple[Any, Any]]]
    """Both values of each setting that differs, by task."""
    summaries: dict[str, tuple[seed_results.Summary, seed_results.Summary]]
    sets: list[SetComparison]
    tolerance: float

    @property
    def are_equal(self) -> bool:
        """Whether scores are equal, within the tolerance, and so are all predictions."""
        scores = all(
            math.isclose(a.mean[name][metric], b.mean[name][metric], rel_tol=self.tolerance, abs_tol=0.0)
            for a, b in self.summaries.values()
            for name, metric in _common(a, b)
        )
        return scores and not any(one.fixed or one.broken for one in self.sets)

    def to_dict(self) -> dict[str, Any]:
        """Return what ``--json`` prints."""
        return {
            "equal": self.are_equal,
            "settings": self.settings,
            "scores": {task: {"a": a.mean, "b": b.mean} for task, (a, b) in self.summaries.items()},
            "examples": [
                {"task": one.task, "set": one.name, "fixed": one.fixed, "broken": one.broken, "p_value": one.p_value}
                for one in self.sets
            ],
        }


def compare_finetunings(first: Path, second: Path, *, tolerance: float = 0.0) -> FinetuningComparison:
    """Compare two output folders of `megabert finetune`: single runs, or the choices of grids set by set.

    Raises:
        ConfigError: They have no task in common, or were scored on other examples.
        CheckpointError: Something in them is missing or damaged.
    """
    a, b = read_summaries(first), read_summaries(second)
    tasks = [task for task in a if task in b]
    if not tasks:
        tasks_of = f"{first} is of {', '.join(a)}, {second} of {', '.join(b)}"
        raise ConfigError(f"{tasks_of}: there is nothing to compare. Name two folders of one task.")
    settings, sets = {}, []
    for task in tasks:
        folders, summaries = (a[task][0], b[task][0]), (a[task][1], b[task][1])
        paths = (folder / seed_results.SETTINGS_NAME for folder in folders)
        recorded = (seed_results.read_settings(path, seed_results.FinetuneSettings) for path in paths)
        old, new = ({**own.settings, "model": own.model} for own in recorded)
        settings[task] = differences(old, new)
        names = [name for name in summaries[0].mean if name in summaries[1].mean]
        sets += [_compare_set(task, name, folders, summaries) for name in names]
    return FinetuningComparison(
        folders=(first, second),
        settings={task: changed for task, changed in settings.items() if changed},
        summaries={task: (a[task][1], b[task][1]) for task in tasks},
        sets=sets,
        tolerance=tolerance,
    )


def _compare_set(
    task: str, name: str, folders: tuple[Path, Path], summaries: tuple[seed_results.Summary, seed_results.Summary]
) -> SetComparison:
    a, b = (read_predictions(folder, summary, name) for folder, summary in zip(folders, summaries, strict=True))
    if [_example(row) for row in a.values()] != [_example(row) for row in b.values()]:
        raise ConfigError(
            f"{folders[0]} and {folders[1]}: the examples of {name} differ, so their predictions cannot be compared. "
            "Score one model on the other's file: megabert evaluate --model ... --data ..."
        )
    gains = {line: goodness(b[line]) - goodness(row) for line, row in a.items()}
    changed = sorted((line for line in gains if gains[line]), key=lambda line: -abs(gains[line]))
    fixed = [line for line in changed if gains[line] > 0]
    return SetComparison(task, name, a, b, fixed=fixed, broken=[line for line in changed if gains[line] < 0])


def _example(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a row that describe the example alone."""
    return {name: row.get(name) for name in _EXAMPLE}


def render_finetunings(comparison: FinetuningComparison, *, examples: int) -> str:
    """Return the comparison as text."""
    a, b = comparison.folders
    lines = [f"A: {a}", f"B: {b}", ""]
    for task, changed in comparison.settings.items():
        lines += [f"{task}, settings that differ:", *(f"  {name}: {x} and {y}" for name, (x, y) in changed.items()), ""]
    lines += [seed_results.UNIT, _score_table(comparison)]
    for one in comparison.sets:
        lines += ["", _heading(one), *_listed("fixed by B", one.fixed, one, examples)]
        lines += _listed("broken by B", one.broken, one, examples)
    return "\n".join(lines)


def _common(a: seed_results.Summary, b: seed_results.Summary) -> list[tuple[str, str]]:
    """Return the sets and metrics that both have."""
    return [one for one in seed_results.metrics_of(a) if one in seed_results.metrics_of(b)]


def _score_table(comparison: FinetuningComparison) -> str:
    rows = []
    for task, (a, b) in comparison.summaries.items():
        for name, metric in _common(a, b):
            change = seed_results.in_points(metric, b.mean[name][metric] - a.mean[name][metric])
            change = "0.00" if change == "-0.00" else change
            cells = (a.shown(name, metric), b.shown(name, metric), change)
            rows.append((task, name, metric, *cells, a.baseline_shown(name, metric)))
    headers = ("task", "set", "metric", "A", "B", "B - A", "constant answer")
    return render_table(rows, headers=headers, align="lllrrrr")


def _heading(one: SetComparison) -> str:
    alike = len(one.a) - len(one.fixed) - len(one.broken)
    both = sum(goodness(row) == 1 and goodness(one.b[line]) == 1 for line, row in one.a.items())
    share = f" ({both:,} of them right)" if any("correct" in row for row in one.a.values()) else ""
    return (
        f"{one.task} {one.name}, predictions of the best seeds for {len(one.a):,} examples: {alike:,} as good{share}, "
        f"{len(one.fixed):,} fixed by B, {len(one.broken):,} broken by B (sign test: p = {one.p_value:.2g})"
    )


def _listed(what: str, chosen: list[int], one: SetComparison, examples: int) -> list[str]:
    shown = chosen[:examples]
    lines = [
        f"  {describe_example(one.a[line])}, "
        f"A said {render_prediction(one.a[line])}, B said {render_prediction(one.b[line])}"
        for line in shown
    ]
    return [f"{what}, {len(shown)} of {len(chosen):,}:", *lines] if shown else []
