"""The tasks, as a table: kind, files, columns, labels, metrics of each are in ``tasks.yaml``."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import KW_ONLY, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from megabert.foundation.errors import ConfigError
from megabert.settings.command_line.parser import refuse_flags
from megabert.settings.config.extensions import load_extension
from megabert.settings.config.finetune import FinetuneConfig
from megabert.settings.config.loading import read_yaml, to_dict
from megabert.settings.config.needs import FINETUNE_NEEDS, refuse_idle

COLUMNS = ("text", "pair", "label")
"""Fields of a task that name columns; a configuration has ``text_column`` and so on."""
USUAL_EVALUATION = ("dev", "validation", "valid", "test")
"""Stems of an evaluation file that has no name of its own; without another one it is the test file."""
TaskKindName = Literal["sequence", "regression", "choice", "span", "tagging", "characters"]


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Task:
    """The content of a task's files, and how the task is scored."""

    name: str
    """Name of the task on the command line."""
    about: str
    """A few words for help texts and model cards."""
    folder: str = ""
    """The folder's name in the layout of the task's suite, or of a folder with several sets; the task's own name if
    empty."""
    _: KW_ONLY
    suite: Literal["glue", "klue"] | None = None
    """The collection that the task belongs to."""
    intermediate: str | None = None
    """The task whose best model this one may start from."""
    kind: TaskKindName = "sequence"
    text: str = "text"
    """Column of the (first) text."""
    pair: str | None = None
    """Column of the second text."""
    label: str = "label"
    """Column of the label or score."""
    labels: tuple[str, ...] | None = None
    """The labels in the order of their ids; None takes the training file's labels, sorted."""
    unlabelled: tuple[str, ...] = ()
    """Labels of rows that are left out."""
    metrics: tuple[str, ...] = ("accuracy",)
    """The metrics that are reported; their mean is the score that picks the best weights. Tags that are not BIO have
    their accuracy alone (`metrics_in`)."""
    train: tuple[str, ...] = ("train",)
    """Stems of the training file in a folder; the first that exists is taken."""
    evaluation: tuple[str, ...] = USUAL_EVALUATION
    """Stems of the evaluation file, likewise."""
    test: tuple[str, ...] = ("test",)
    """Stems of the test file, which a grid scores at the end if it has labels."""
    also: tuple[str, ...] = ()
    """Stems of further evaluation files, which are scored at the end."""
    header: tuple[str, ...] | None = None
    """Column names of files that have no header line."""
    may_be_unanswerable: bool = False
    """Whether "no answer" may be the answer to a question."""
    entities: tuple[str, ...] = ()
    """Columns of entities that are marked in the text, each an object with ``word``, ``start_idx`` and ``end_idx``."""
    answers: Literal["korquad", "klue"] | None = None
    """The script whose rules compare answers; None takes the rules of ``language``."""
    published: tuple[str, str, str] | None = None
    """The published set on the Hugging Face Hub: its id, its configuration, and the metric that stands for it."""
    spare_columns: int = 0
    """Columns before the last that a row of TSV or CSV may have more or fewer than the header names."""
    skips_broken_rows: bool = False
    """Whether rows with a wrong number of columns are left out, which the log says, instead of refused."""
    own_kind: type[Any] | None = None
    """Class that takes the place of the kind's: a `task_kinds.TaskKind` derived from it."""
    package: str | None = None
    """The package that registers the task, with its version; set when the task is found."""

    def metrics_in(self, found: Container[str]) -> tuple[str, ...]:
        """Return the task's metrics that a result has, or its accuracy if it has none of them."""
        return tuple(name for name in self.metrics if name in found) or ("accuracy",)


TASKS = {name: Task(name, **fields) for name, fields in read_yaml(Path(__file__).with_name("tasks.yaml")).items()}
"""All tasks by name."""
SUITES: dict[str, tuple[Task, ...]] = {
    suite: tuple(task for task in TASKS.values() if task.suite == suite) for suite in ("glue", "klue")
}
"""The tasks of each collection, in the order of its table."""
INTERMEDIATE: tuple[str, ...] = tuple(sorted({task.intermediate for task in TASKS.values() if task.intermediate}))
"""Tasks whose best model others may start from."""


def find_task(name: str, config: FinetuneConfig | None = None, *, package: str | None = None) -> Task:
    """Return a task, with other columns if the settings name them; ``package`` is what its model recorded.

    Raises:
        ConfigError: There is no such task, or the package that registers it is wrong or missing.
    """
    extension = load_extension("task", name, TASKS, {}, package)
    task = replace(extension[0], name=name, package=extension[1]) if extension else TASKS[name]
    given = {column: getattr(config, f"{column}_column", None) for column in COLUMNS}
    return replace(task, **{column: value for column, value in given.items() if value})


def refuse_idle_settings(
    given: Mapping[str, Any], tasks: Sequence[Task], config: FinetuneConfig, *, are_folders: bool
) -> None:
    """Refuse settings that have no effect on any of some sets.

    Args:
        given: The fields of the configuration that were given, with their values.
        tasks: The task of each set.
        config: The resolved configuration.
        are_folders: Whether each set is a folder, and not a file.

    Raises:
        ConfigError: Naming the setting, and why it has none.
    """
    of_tasks = {"task": [task.name for task in tasks], "kind of task": [task.kind for task in tasks]}
    refuse_idle(given, {**to_dict(config), **of_tasks}, FINETUNE_NEEDS)
    flags = [f"--{field.replace('_', '-')}" for field in given]
    if all(task.answers for task in tasks if task.kind == "span"):
        refuse_flags(["--language"], flags, "on a task that has rules of its own for answers")
    if are_folders:
        refuse_flags(["--held-out"], flags, "on folders, which have files for evaluation")


def refuse_columns(task: Task, path: Path) -> None:
    """Refuse columns that were given for a file without named columns.

    Raises:
        ConfigError: A column differs from the task's own.
    """
    given = [name for name in COLUMNS if getattr(task, name) != getattr(find_task(task.name), name)]
    if given:
        flags = ", ".join(f"--{name}-column {getattr(task, name)}" for name in given)
        raise ConfigError(f"{path}: has no named columns, so {flags} means nothing. Leave it out, or give a table.")
