"""Files of questions with answers in a context: SQuAD's JSON, and tables of its columns."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from megabert.downstream.finetuning.tables import read_table
from megabert.downstream.finetuning.task_kinds.base import Example
from megabert.downstream.finetuning.tasks import Task, refuse_columns
from megabert.foundation.errors import DataError
from megabert.foundation.files import read_small
from megabert.foundation.json_files import parse_json, reading

MAX_BYTES = 2 << 30
"""Most bytes of a file of questions."""


@dataclass(frozen=True, kw_only=True)
class SpanQuestion(Example):
    """A question, its context, and its answers: the character of the context at which each begins, and its text."""

    identity: str
    question: str
    context: str
    answers: tuple[tuple[int, str], ...]

    def to_dict(self) -> dict[str, Any]:
        """Return line, id, question, context and the texts of the answers."""
        return {**super().to_dict(), "answers": [text for _, text in self.answers]}


def read_questions(task: Task, path: Path) -> list[SpanQuestion]:
    """Read SQuAD's JSON, or JSON Lines or Parquet with the columns id, question, context, answers.

    Raises:
        DataError: Something in the file is wrong; the message names file, question and remedy.
    """
    examples = list(_read_squad(task, path) if path.suffix == ".json" else _read_rows(task, path))
    identities = set()
    for example in examples:
        question = f"{example.where}: question {example.identity!r}"
        for start, text in example.answers:
            there = example.context[start : start + len(text)] if start >= 0 else ""
            if there != text or not text:
                raise DataError(
                    f"{question}: the answer {text!r:.80} is not at character {start} of its context; {there!r:.80} "
                    "is. Fix answer_start, which counts characters, not bytes."
                )
        if not example.answers and not task.may_be_unanswerable:
            raise DataError(f"{question} has no answer. Leave it out, or use the task squad2.")
        if example.identity in identities:
            raise DataError(f"{example.where}: id {example.identity!r} is used twice. Give each question its own.")
        identities.add(example.identity)
    return examples


@dataclass(frozen=True)
class _Answer:
    answer_start: int
    text: str


@dataclass(frozen=True)
class _Row:
    question: str
    id: str | int | None = None
    guid: str | None = None
    """The id in KLUE."""
    answers: list[_Answer] | None = None
    is_impossible: bool = False


@dataclass(frozen=True)
class _Paragraph:
    context: str
    qas: list[_Row]


@dataclass(frozen=True)
class _Article:
    paragraphs: list[_Paragraph]


@dataclass(frozen=True)
class _Squad:
    """A file of SQuAD, as far as it is read."""

    data: list[_Article]


@dataclass(frozen=True)
class _AnswerLists:
    """The answers of a row of a table."""

    answer_start: list[int]
    text: list[str]


def _read_squad(task: Task, path: Path) -> Iterator[SpanQuestion]:
    refuse_columns(task, path)
    with reading(path):
        text = read_small(path, most=MAX_BYTES).decode("utf-8-sig")
    number = 0
    content = parse_json(text, _Squad, where=str(path), remedy="Expected SQuAD's form: data[].paragraphs[].qas[].")
    for i, article in enumerate(content.data):
        for j, paragraph in enumerate(article.paragraphs):
            for k, row in enumerate(paragraph.qas):
                number += 1
                answers = [] if row.is_impossible else row.answers or []
                where = f"{path}: data[{i}].paragraphs[{j}].qas[{k}]"
                identity = row.guid if row.id is None else row.id
                if identity is None:
                    raise DataError(f"{where}: has neither id nor guid. Give each question its own.")
                yield SpanQuestion(
                    where=where,
                    line=number,
                    identity=str(identity),
                    question=row.question,
                    context=paragraph.context,
                    answers=tuple((answer.answer_start, answer.text) for answer in answers),
                )


def _read_rows(task: Task, path: Path) -> Iterator[SpanQuestion]:
    assert task.pair is not None
    lists = TypeAdapter(_AnswerLists)
    for row in read_table(path, ["id", task.text, task.pair, task.label]):
        try:
            answers = lists.validate_python(row.values[task.label])
            pairs = tuple(zip(answers.answer_start, answers.text, strict=True))
        except ValueError:  # pydantic's errors are some
            raise DataError(
                f"{row.where}: {task.label} must be an object of two lists of one length, text and "
                f"answer_start (found {row.values[task.label]!r:.80})."
            ) from None
        yield SpanQuestion(
            **row.origin() | {"identity": row.text("id")},
            question=row.text(task.text),
            context=row.text(task.pair),
            answers=pairs,
        )
