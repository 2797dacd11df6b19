"""Questions with answers in a context, read from SQuAD's JSON or from rows with the same content."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from megabert.errors import DataError
from megabert.finetuning.families.base import Example
from megabert.finetuning.tables import as_text, json_object, read_table, reading
from megabert.finetuning.tasks import Task, refuse_columns

MAY_BE_UNANSWERABLE = ("squad2",)
"""Tasks in which a question may have no answer."""


@dataclass(frozen=True, kw_only=True)
class SpanQuestion(Example):
    """A question, its context, and its answers: the character of the context at which each begins, and its text."""

    identity: str
    question: str
    context: str
    answers: tuple[tuple[int, str], ...]


def read_questions(task: Task, path: Path) -> list[SpanQuestion]:
    """Read SQuAD's JSON, or JSON Lines or Parquet with the columns id, question, context, answers.

    Raises:
        DataError: The file has another form, an answer is not in its context, or an id is used twice.
    """
    rows = _read_squad(task, path) if path.suffix == ".json" else _read_rows(task, path)
    examples = [_checked(example, task) for example in rows]
    if not examples:
        raise DataError(f"{path}: holds no examples. Name a file with questions.")
    identities = set()
    for example in examples:
        if example.identity in identities:
            raise DataError(f"{example.where}: id {example.identity!r} is used twice. Give each question its own.")
        identities.add(example.identity)
    return examples


def _checked(example: SpanQuestion, task: Task) -> SpanQuestion:
    """Return an example whose answers are where it says, and which has one if the task asks for it."""
    for start, text in example.answers:
        there = example.context[start : start + len(text)] if start >= 0 else ""
        if there != text or not text:
            raise DataError(
                f"{example.where}: question {example.identity!r}: the answer {text!r} is not at character {start} of "
                f"its context; {there!r} is. Fix answer_start, which counts characters, not bytes."
            )
    if not example.answers and task.name not in MAY_BE_UNANSWERABLE:
        raise DataError(
            f"{example.where}: question {example.identity!r} has no answer. Leave it out, or use the task "
            f"{MAY_BE_UNANSWERABLE[0]}."
        )
    return example


def _read_squad(task: Task, path: Path) -> Iterator[SpanQuestion]:
    refuse_columns(task, path)
    with reading(path):
        content = json_object(path.read_text(encoding="utf-8-sig"), str(path))
    where = str(path)
    try:
        for i, article in enumerate(content["data"]):
            for j, paragraph in enumerate(article["paragraphs"]):
                for k, row in enumerate(paragraph["qas"]):
                    where = f"{path}: data[{i}].paragraphs[{j}].qas[{k}]"
                    answers = [] if row.get("is_impossible") else row["answers"]
                    yield SpanQuestion(
                        where=where,
                        identity=str(row["id"]),
                        question=as_text(row["question"], f"{where}: question"),
                        context=as_text(paragraph["context"], f"{where}: context"),
                        answers=tuple(
                            (int(answer["answer_start"]), as_text(answer["text"], f"{where}: answer"))
                            for answer in answers
                        ),
                    )
    except (KeyError, TypeError, ValueError) as error:
        name = f"no {error.args[0]!r}" if isinstance(error, KeyError) else str(error)
        raise DataError(f"{where}: is not in SQuAD's form: {name}. Expected data[].paragraphs[].qas[].") from None


def _read_rows(task: Task, path: Path) -> Iterator[SpanQuestion]:
    assert task.pair is not None
    for row in read_table(path, ["id", task.text, task.pair, task.label]):
        answers = row.values[task.label]
        try:
            pairs = tuple(zip(map(int, answers["answer_start"]), map(str, answers["text"]), strict=True))
        except (KeyError, TypeError, ValueError):
            raise DataError(
                f"{row.where}: {task.label} must be an object of two lists of one length, text and "
                f"answer_start (found {answers!r:.80})."
            ) from None
        yield SpanQuestion(
            where=row.where,
            identity=row.text("id"),
            question=row.text(task.text),
            context=row.text(task.pair),
            answers=pairs,
        )
