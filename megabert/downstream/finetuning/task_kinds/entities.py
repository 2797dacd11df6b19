"""Entities of a sentence, marked in its text: relation extraction as in KLUE (Park et al. 2021, section 3.5).

The subject is written between ``<subj>`` and ``</subj>``, the object between ``<obj>`` and ``</obj>``. KLUE-baseline
adds these four to the vocabulary; here the model's own pieces spell them, so that the vocabulary stays as it is.
"""

from typing import Any

from megabert.downstream.finetuning.tables import Row
from megabert.downstream.finetuning.tasks import Task
from megabert.foundation.errors import DataError

MARKERS = ("subj", "obj")
"""Names of the marks, in the order of the task's columns."""
FIELDS = ("word", "start_idx", "end_idx")
"""Fields of an entity; ``end_idx`` is its last character."""


def columns_of_entities(task: Task) -> list[str]:
    """Return the columns that a task's entities are read from."""
    return [f"{column}.{name}" for column in task.entities for name in FIELDS]


def marked_text(task: Task, row: Row) -> str:
    """Return a row's text, with the marks of its entities if it has any.

    Raises:
        DataError: An entity is not where the row says, or two overlap.
    """
    text = row.text(task.text)
    spans = [_span(row, column, text) for column in task.entities]
    if len(spans) == 2 and max(start for start, _ in spans) < min(end for _, end in spans):
        raise DataError(f"{row.where}: {' and '.join(task.entities)} overlap. Fix their start_idx and end_idx.")
    # From the last to the first: marks do not move the characters before them.
    for (start, end), mark in sorted(zip(spans, MARKERS, strict=False), reverse=True):
        text = f"{text[:start]}<{mark}>{text[start:end]}</{mark}>{text[end:]}"
    return text


def _span(row: Row, column: str, text: str) -> tuple[int, int]:
    word, start, last = (row.values[f"{column}.{name}"] for name in FIELDS)
    if not _is_index(start) or not _is_index(last) or not isinstance(word, str) or text[start : last + 1] != word:
        raise DataError(
            f"{row.where}: {column}: {word!r:.80} is not at characters {start!r:.20} to {last!r:.20} of the text. Fix "
            "start_idx and end_idx, which count characters from 0; end_idx is the last one."
        )
    return start, last + 1


def _is_index(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
