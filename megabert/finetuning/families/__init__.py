"""Families of tasks, one class each: how examples are read, encoded, scored and written."""

from megabert.finetuning.families.base import Example, Family, Head, Prediction
from megabert.finetuning.families.choice import Choice
from megabert.finetuning.families.sequence import Classification, Regression
from megabert.finetuning.families.span import Span
from megabert.finetuning.families.tagging import Tagging
from megabert.finetuning.tasks import TaskFamily

FAMILIES: dict[TaskFamily, type[Family]] = {
    "sequence": Classification,
    "regression": Regression,
    "choice": Choice,
    "span": Span,
    "tagging": Tagging,
}

__all__ = ["FAMILIES", "Example", "Family", "Head", "Prediction"]
