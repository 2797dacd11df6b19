"""A task with a metric of its own: which of two books a passage is from."""

from collections.abc import Sequence

from megabert.downstream.finetuning.task_kinds import Prediction
from megabert.downstream.finetuning.task_kinds.sequence import Classification, LabelledText
from megabert.downstream.finetuning.tasks import Task


class Passages(Classification):
    """A text with one of several labels; a long passage counts more."""

    def score(self, predictions: Sequence[Prediction], examples: Sequence[LabelledText]) -> dict[str, float]:
        """Return the task's metrics."""
        sizes = [len(example.text) for example in examples]
        right = [row["prediction"] == example.label for row, example in zip(predictions, examples, strict=True)]
        weighted = sum(size for size, is_right in zip(sizes, right, strict=True) if is_right)
        return {"by_characters": weighted / sum(sizes), "accuracy": sum(right) / len(right)}


passages = Task("passages", "which book a passage is from", label="book", metrics=("by_characters",), own_kind=Passages)
