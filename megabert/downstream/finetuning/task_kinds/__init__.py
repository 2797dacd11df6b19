"""Kinds of tasks, one class each: how examples are read, encoded, scored and written."""

from megabert.downstream.finetuning.task_kinds.base import Example, Head, Prediction, TaskKind
from megabert.downstream.finetuning.task_kinds.characters import CharacterTagging
from megabert.downstream.finetuning.task_kinds.choice import Choice
from megabert.downstream.finetuning.task_kinds.sequence import Classification, Regression
from megabert.downstream.finetuning.task_kinds.span import Span
from megabert.downstream.finetuning.task_kinds.tagging import Tagging
from megabert.downstream.finetuning.tasks import Task, TaskKindName
from megabert.foundation.errors import ConfigError

TASK_KINDS: dict[TaskKindName, type[TaskKind]] = {
    "sequence": Classification,
    "regression": Regression,
    "choice": Choice,
    "span": Span,
    "tagging": Tagging,
    "characters": CharacterTagging,
}

__all__ = ["TASK_KINDS", "Example", "Head", "Prediction", "TaskKind", "kind_of_task"]


def kind_of_task(task: Task) -> type[TaskKind]:
    """Return the class of a task's kind.

    Raises:
        ConfigError: A package's task has a kind of its own that is no `TaskKind`.
    """
    kind = task.own_kind or TASK_KINDS[task.kind]
    if not issubclass(kind, TaskKind):
        raise ConfigError(f"task {task.name} of {task.package}: own_kind={kind.__name__} is no TaskKind. Correct it.")
    return kind
