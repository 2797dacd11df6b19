"""The tasks, as a table: kind, files, columns, labels, metrics."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from megabert.config.finetune import FinetuneConfig
from megabert.config.names import did_you_mean
from megabert.errors import ConfigError

COLUMNS = ("text", "pair", "label")
"""Fields of a task that name columns; a configuration has ``text_column`` and so on."""
TaskKindName = Literal["sequence", "regression", "choice", "span", "tagging"]


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a task's files hold, and how the task is scored."""

    name: str
    """Name of the task on the command line."""
    kind: TaskKindName = "sequence"
    about: str
    """A few words for help texts and model cards."""
    text: str = "text"
    """Column of the (first) text."""
    pair: str | None = None
    """Column of the second text."""
    label: str = "label"
    """Column of the label or score."""
    labels: tuple[str, ...] | None = None
    """The labels in the order of their ids; None takes those of the training file, sorted."""
    unlabelled: tuple[str, ...] = ()
    """Labels of rows that are left out."""
    metrics: tuple[str, ...] = ("accuracy",)
    """The metrics that are reported; their mean is the score that picks the best weights."""
    train: str = "train"
    """Stem of the training file in a folder."""
    evaluation: tuple[str, ...] = ("dev", "validation", "valid", "test")
    """Stems of the evaluation file; the first that exists is taken."""
    also: tuple[str, ...] = ()
    """Stems of further evaluation files, which are scored at the end."""
    header: tuple[str, ...] | None = None
    """Column names of files that have no header line."""
    may_be_unanswerable: bool = False
    """Whether "no answer" may be the answer to a question."""
    skips_broken_rows: bool = False
    """Whether rows with a wrong number of columns are left out, which the log says, instead of refused."""
    glue_folder: str | None = None
    """The folder's name in GLUE's layout."""


_ENTAILMENT = ("entailment", "not_entailment")
_SENTENCES: dict[str, Any] = {"text": "sentence1", "pair": "sentence2"}
_INFERENCE: dict[str, Any] = {
    **_SENTENCES,
    "label": "gold_label",
    "labels": ("entailment", "neutral", "contradiction"),
    "unlabelled": ("-",),  # annotators did not agree
}
_SPANS: dict[str, Any] = {"text": "question", "pair": "context", "label": "answers", "metrics": ("f1",)}

_TABLE = [
    # GLUE (Wang et al. 2019): files as its own download script leaves them, metrics as its paper states them.
    Task(
        name="cola",
        glue_folder="CoLA",
        about="acceptability (Matthews correlation)",
        text="sentence",
        labels=("0", "1"),
        header=("source", "label", "star", "sentence"),
        metrics=("mcc",),
    ),
    Task(name="sst2", glue_folder="SST-2", about="sentiment of film reviews", text="sentence", labels=("0", "1")),
    Task(
        name="mrpc",
        glue_folder="MRPC",
        about="paraphrases",
        text="#1 String",
        pair="#2 String",
        label="Quality",
        labels=("0", "1"),
        metrics=("accuracy", "f1"),
    ),
    Task(
        name="qqp",
        glue_folder="QQP",
        about="duplicate questions",
        text="question1",
        pair="question2",
        label="is_duplicate",
        labels=("0", "1"),
        metrics=("accuracy", "f1"),
        skips_broken_rows=True,
    ),
    Task(
        name="stsb",
        glue_folder="STS-B",
        about="similarity, 0 to 5",
        kind="regression",
        label="score",
        metrics=("pearson", "spearman"),
        **_SENTENCES,
    ),
    Task(
        name="mnli",
        glue_folder="MNLI",
        about="inference over genres, matched and mismatched",
        evaluation=("dev_matched",),
        also=("dev_mismatched",),
        **_INFERENCE,
    ),
    Task(
        name="qnli",
        glue_folder="QNLI",
        about="does the sentence answer",
        text="question",
        pair="sentence",
        labels=_ENTAILMENT,
    ),
    Task(name="rte", glue_folder="RTE", about="inference", labels=_ENTAILMENT, **_SENTENCES),
    Task(name="wnli", glue_folder="WNLI", about="inference about pronouns", labels=("0", "1"), **_SENTENCES),
    # Other published sets, as their authors distribute them.
    Task(name="snli", about="inference (Bowman et al. 2015), its JSON Lines", **_INFERENCE),
    Task(
        name="boolq",
        about="yes/no questions (Clark et al. 2019), its JSON Lines",
        text="question",
        pair="passage",
        label="answer",
        labels=("false", "true"),
    ),
    Task(name="swag", kind="choice", about="four endings (Zellers et al. 2018), its CSV", text="sent1", pair="sent2"),
    Task(name="squad", kind="span", about="answers in a text, SQuAD 1.1's JSON (Rajpurkar et al. 2016)", **_SPANS),
    Task(
        name="squad2",
        kind="span",
        about="answers or none, SQuAD 2.0's JSON (Rajpurkar et al. 2018)",
        may_be_unanswerable=True,
        **_SPANS,
    ),
    # Anybody's own data.
    Task(
        name="classification",
        about="a label for a text or a pair, out of any TSV, CSV, JSON Lines or Parquet",
    ),
    Task(name="regression", kind="regression", about="a number instead of a label", metrics=("pearson", "spearman")),
    Task(
        name="tagging",
        kind="tagging",
        about="tags of tokens in BIO: CoNLL columns, or JSON Lines with lists",
        text="tokens",
        label="tags",
        metrics=("f1",),
    ),
]

TASKS: dict[str, Task] = {task.name: task for task in _TABLE}
GLUE: tuple[Task, ...] = tuple(task for task in _TABLE if task.glue_folder)


def find_task(name: str, config: FinetuneConfig | None = None) -> Task:
    """Return a task, with other columns where the settings name them.

    Raises:
        ConfigError: There is no such task.
    """
    if name not in TASKS:
        raise ConfigError(f"{name}: no such task{did_you_mean(name, list(TASKS))}")
    given = {column: getattr(config, f"{column}_column", None) for column in COLUMNS}
    return replace(TASKS[name], **{column: value for column, value in given.items() if value})


def refuse_columns(task: Task, path: Path) -> None:
    """Refuse columns that were given for a file without named columns.

    Raises:
        ConfigError: A column differs from the task's own.
    """
    given = [name for name in COLUMNS if getattr(task, name) != getattr(TASKS[task.name], name)]
    if given:
        flags = ", ".join(f"--{name}-column {getattr(task, name)}" for name in given)
        raise ConfigError(f"{path}: has no named columns, so {flags} means nothing. Leave it out, or give a table.")
