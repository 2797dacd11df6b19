"""Predictions of a finished fine-tuning, read back to look at: which are wrong, and how wrong."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from megabert.downstream.finetuning.results import Summary, render_summary, seed_folder
from megabert.foundation.errors import CheckpointError, DataError
from megabert.foundation.json_files import read_json_lines
from megabert.foundation.text_tables import render_table

MOST_LABELS = 20
"""A table of confusions with more labels is not shown."""
_SHOWN = 160
"""Characters of a text that are shown."""
LABELS = ("label", "tags", "answers")
"""Fields that hold the right answer, depending on the kind of task."""

Rows = dict[int, dict[str, Any]]
"""The rows of a file of predictions by the line of their example."""


def read_predictions(output_dir: Path, summary: Summary, name: str) -> Rows:
    """Read the predictions of the best seed for one evaluation set.

    Raises:
        CheckpointError: The file is missing or damaged.
    """
    path = seed_folder(output_dir, summary.best_seed) / f"predictions_{name}.jsonl"
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


def render_report(output_dir: Path, summary: Summary, *, examples: int) -> str:
    """Return scores, confusions of labels, and the surest errors of the best seed's predictions.

    Raises:
        CheckpointError: Predictions are missing or damaged.
    """
    blocks = [render_summary(summary)]
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
