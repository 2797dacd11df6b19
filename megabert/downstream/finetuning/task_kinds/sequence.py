"""One label, or one number, for a text or a pair of texts.

A text may have two entities marked, for relation extraction as in KLUE (Park et al. 2021, section 3.5). The subject is
written between ``<subj>`` and ``</subj>``, the object between ``<obj>`` and ``</obj>``. KLUE-baseline adds these to the
vocabulary; here the model's own pieces spell them, so that the vocabulary stays as it is.
"""

import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from megabert.downstream.finetuning.batches import Features, TaskBatch
from megabert.downstream.finetuning.metrics import METRICS, SIMILAR, mean_auprc
from megabert.downstream.finetuning.tables import Row, read_table
from megabert.downstream.finetuning.task_kinds.base import Example, Head, Logits, Prediction, TaskKind
from megabert.downstream.finetuning.tasks import Task
from megabert.foundation.errors import DataError

MARKERS = ("subj", "obj")
"""Names of the marks, in the order of the task's columns."""
FIELDS = ("word", "start_idx", "end_idx")
"""Fields of an entity; ``end_idx`` is its last character."""
LARGEST_LABEL = 1e18
"""Largest number that a regression learns: its square is still far inside float32."""


@dataclass(frozen=True, kw_only=True)
class LabelledText(Example):
    """A text, perhaps a second one, and the label as the file has it."""

    text: str
    pair: str | None
    label: str


class _SequenceKind(TaskKind[LabelledText]):
    """What classification and regression share: the pooled first token is read."""

    head = Head("SequenceClassification", "classifier", "sequence", "text-classification")

    @classmethod
    def read(cls, task: Task, path: Path) -> list[LabelledText]:
        """Read a table."""
        entities = [f"{column}.{name}" for column in task.entities for name in FIELDS]
        names = [task.text, *([task.pair] if task.pair else []), *entities, task.label]
        rows = read_table(path, names, task)
        examples = [
            LabelledText(
                **row.origin(), text=_marked_text(task, row), pair=task.pair and row.text(task.pair), label=label
            )
            for row in rows
            if (label := row.label(task.label)) not in task.unlabelled
        ]
        if rows and not examples:
            raise DataError(f"{path}: none of {len(rows)} rows has a label. Name a file with labels.")
        return examples

    @abstractmethod
    def _labels(self, examples: Sequence[LabelledText]) -> NDArray:
        """Return the targets of the loss."""

    def encode(self, examples: Sequence[LabelledText], *, is_training: bool) -> Features:
        """Tokenize texts and read their labels."""
        labels = self._labels(examples)
        sequences = self.sequences()
        first = self.tokenizer.encode_batch([example.text for example in examples])
        second = self.tokenizer.encode_batch([example.pair or "" for example in examples])
        for example, a, b in zip(examples, first, second, strict=True):
            sequences.add(a, None if example.pair is None else b)
        return Features(sequences.columns(), labels, rows=np.ones(len(examples), np.int64))


class Classification(_SequenceKind):
    """A text, or a pair of texts, has one of several labels."""

    @classmethod
    def labels_of(cls, examples: Sequence[LabelledText]) -> tuple[str, ...]:
        """Return the labels, sorted; whole numbers by their value."""
        labels = {example.label for example in examples}
        if len(labels) < 2:
            raise DataError(
                f"{examples[0].where.rpartition(':')[0]}: every example has the label {labels.pop()!r}. Training needs "
                "two labels or more; is --label-column right?"
            )
        # By value, so that 10 comes after 9. Equal numbers, such as 1 and 01, are ordered by their text.
        are_numbers = all(re.fullmatch(r"-?[0-9]{1,1000}", label) for label in labels)
        return tuple(sorted(labels, key=lambda label: (int(label) if are_numbers else 0, label)))

    def _labels(self, examples: Sequence[LabelledText]) -> NDArray:
        return np.array([self.id_of(example.label, example.where) for example in examples], np.int64)

    def answers(self, logits: Logits, examples: Sequence[LabelledText], features: Features) -> Iterator[Prediction]:
        """Yield the likeliest label and the probabilities of all."""
        for row in torch.softmax(torch.from_numpy(np.concatenate(logits)), -1).numpy():
            probabilities = dict(zip(self.labels, row.tolist(), strict=True))
            yield {"prediction": self.labels[int(row.argmax())], "probabilities": probabilities}

    def score(self, predictions: Sequence[Prediction], examples: Sequence[LabelledText]) -> dict[str, float]:
        """Return the task's metrics."""
        ids = {label: index for index, label in enumerate(self._scored_labels)}
        gold = [ids[example.label] for example in examples]
        predicted = [ids[row["prediction"]] for row in predictions]
        names = dict.fromkeys((*self.task.metrics, *(() if self.task.suite else ("accuracy", "macro_f1"))))
        scores = {name: METRICS[name](gold, predicted) for name in names if name != "auprc"}
        if "auprc" in names:
            probabilities = [[row["probabilities"][label] for label in ids] for row in predictions]
            scores["auprc"] = mean_auprc(gold, probabilities)
        return scores

    @property
    def _scored_labels(self) -> Sequence[str]:
        """The labels in the task's order, which its metrics go by; a model from elsewhere may have them in another."""
        named = self.task.labels
        return named if named is not None and set(named) == set(self.labels) else self.labels

    def constant_answers(self, examples: Sequence[LabelledText]) -> Iterator[list[Prediction]]:
        """Yield the two most frequent labels, the first of which may not count, and the positive one, whose F1 is best
        if it is rare.
        """
        frequent = [label for label, _ in Counter(example.label for example in examples).most_common(2)]
        for label in dict.fromkeys((*frequent, self._scored_labels[1])):
            probabilities = {name: float(name == label) for name in self.labels}
            yield [{"prediction": label, "probabilities": probabilities}] * len(examples)

    def judge(self, prediction: Prediction, metrics: Mapping[str, float]) -> dict[str, Any]:
        """Return whether the label is correct, and the probabilities in fewer digits."""
        rounded = {label: round(p, 6) for label, p in prediction["probabilities"].items()}
        return {"probabilities": rounded, **super().judge(prediction, metrics)}


class Regression(_SequenceKind):
    """A text, or a pair of texts, has a number."""

    outputs = 1
    fixed_labels = ("score",)  # a configuration of transformers asks for a name

    def _labels(self, examples: Sequence[LabelledText]) -> NDArray:
        return np.array([_number(example) for example in examples], np.float32)

    def loss(self, logits: Tensor, batch: TaskBatch) -> Tensor:
        """Return the summed squared error."""
        return (logits[: len(batch.labels), 0].float() - batch.labels).square().sum()

    def answers(self, logits: Logits, examples: Sequence[LabelledText], features: Features) -> Iterator[Prediction]:
        """Yield the predicted numbers, and the right ones as numbers."""
        for example, row in zip(examples, logits, strict=True):
            yield {"label": _number(example), "prediction": float(row[0, 0])}

    def score(self, predictions: Sequence[Prediction], examples: Sequence[LabelledText]) -> dict[str, float]:
        """Return the task's metrics."""
        gold = [_number(example) for example in examples]
        predicted = [row["prediction"] for row in predictions]
        return {name: METRICS[name](gold, predicted) for name in self.task.metrics}

    def constant_answers(self, examples: Sequence[LabelledText]) -> Iterator[list[Prediction]]:
        """Yield two numbers, which correlate with nothing; the second one says that all texts are similar."""
        for number in (0.0, SIMILAR):
            yield [{"prediction": number}] * len(examples)

    def judge(self, prediction: Prediction, metrics: Mapping[str, float]) -> dict[str, Any]:
        """Return by how much the prediction is above the right number."""
        return {"error": prediction["prediction"] - prediction["label"]}


def _number(example: LabelledText) -> float:
    is_number = re.fullmatch(r"\s*[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?\s*", example.label)
    if not is_number or abs(float(example.label)) > LARGEST_LABEL:
        raise DataError(
            f"{example.where}: {example.label!r:.80} is not a number, or its square is too large for float32. Fix "
            "it, or name another --label-column."
        )
    return float(example.label)


def _marked_text(task: Task, row: Row) -> str:
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
