"""Which of four endings follows (SWAG; Zellers et al. 2018): four sequences per question, one logit each."""

# Q questions, K endings

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from megabert.downstream.finetuning.batches import Features, TaskBatch
from megabert.downstream.finetuning.metrics import METRICS
from megabert.downstream.finetuning.tables import read_table
from megabert.downstream.finetuning.task_kinds.base import Example, Head, Logits, Prediction, TaskKind
from megabert.downstream.finetuning.tasks import Task
from megabert.foundation.errors import DataError

ENDINGS = ("ending0", "ending1", "ending2", "ending3")
"""Columns of the endings."""


@dataclass(frozen=True, kw_only=True)
class ChoiceQuestion(Example):
    """A context, the start of a sentence, its possible endings, and the index of the right one."""

    context: str
    start: str
    endings: tuple[str, ...]
    label: int


class Choice(TaskKind[ChoiceQuestion]):
    """Four sequences per question: the first text is the context, the second the start with one of the endings."""

    head = Head("MultipleChoice", "classifier", "sequence", "multiple-choice")
    outputs = 1  # a logit for each sequence, that is for each ending
    fixed_labels = ("0", "1", "2", "3")

    @classmethod
    def read(cls, task: Task, path: Path) -> list[ChoiceQuestion]:
        """Read a table."""
        assert task.pair is not None
        return [
            ChoiceQuestion(
                **row.origin(),
                context=row.text(task.text),
                start=row.text(task.pair),
                endings=tuple(map(row.text, ENDINGS)),
                label=_label(row.label(task.label), row.where),
            )
            for row in read_table(path, [task.text, task.pair, *ENDINGS, task.label])
        ]

    def encode(self, examples: Sequence[ChoiceQuestion], *, is_training: bool) -> Features:
        """Tokenize each ending with its start."""
        sequences, group = self.sequences(), len(ENDINGS)
        contexts = self.tokenizer.encode_batch([example.context for example in examples])
        texts = [f"{example.start} {ending}" for example in examples for ending in example.endings]
        for index, second in enumerate(self.tokenizer.encode_batch(texts)):
            sequences.add(contexts[index // group], second)
        labels = np.array([example.label for example in examples], np.int64)
        return Features(sequences.columns(), labels, rows=np.full(len(examples), group, np.int64), group=group)

    def loss(self, logits: Tensor, batch: TaskBatch) -> Tensor:
        """Return the summed cross entropy over the endings of each example."""
        logits_QK = logits[: batch.inputs.num_instances, 0].view(-1, len(ENDINGS))
        return super().loss(logits_QK.contiguous(), batch)

    def answers(self, logits: Logits, examples: Sequence[ChoiceQuestion], features: Features) -> Iterator[Prediction]:
        """Yield the likeliest ending and the probabilities of all."""
        for row in torch.softmax(torch.from_numpy(np.stack(logits)[:, :, 0]), -1).numpy():
            yield {"prediction": int(row.argmax()), "probabilities": [round(float(p), 6) for p in row]}

    def score(self, predictions: Sequence[Prediction], examples: Sequence[ChoiceQuestion]) -> dict[str, float]:
        """Return the accuracy."""
        predicted = [row["prediction"] for row in predictions]
        return {"accuracy": METRICS["accuracy"]([example.label for example in examples], predicted)}

    def constant_answers(self, examples: Sequence[ChoiceQuestion]) -> Iterator[list[Prediction]]:
        """Yield the ending that is right most often."""
        frequent = Counter(example.label for example in examples).most_common(1)[0][0]
        yield [{"prediction": frequent}] * len(examples)


def _label(text: str, where: str) -> int:
    if text not in Choice.fixed_labels:
        raise DataError(f"{where}: label {text!r} is not the number of an ending, 0 to 3. Name the --label-column.")
    return int(text)
