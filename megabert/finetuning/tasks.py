"""The tasks, as a table: kind, files, columns, labels, metrics."""

from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from megabert.config.finetune import FinetuneConfig
from megabert.config.names import did_you_mean
from megabert.errors import ConfigError

COLUMNS = ("text", "pair", "label")
"""Fields of a task that name columns; a configuration has ``text_column`` and so on."""
TaskKindName = Literal["sequence", "regression", "choice", "span", "tagging"]


@dataclass(frozen=True)
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


_GLUE: dict[str, Any] = {"suite": "glue"}
_FROM_MNLI: dict[str, Any] = {**_GLUE, "intermediate": "mnli"}  # as Liu et al. 2019 and Lan et al. 2020 do
_BINARY: dict[str, Any] = {"labels": ("0", "1")}
_ENTAILMENT: dict[str, Any] = {"labels": ("entailment", "not_entailment")}
_DUPLICATES: dict[str, Any] = {**_BINARY, "metrics": ("accuracy", "f1")}
_NUMBER: dict[str, Any] = {"kind": "regression", "metrics": ("pearson", "spearman")}
_TAGS: dict[str, Any] = {"kind": "tagging", "text": "tokens", "label": "tags", "metrics": ("f1",)}
_SPANS: dict[str, Any] = {"kind": "span", "text": "question", "pair": "context", "label": "answers", "metrics": ("f1",)}
_SENTENCES: dict[str, Any] = {"text": "sentence1", "pair": "sentence2"}
_STRINGS: dict[str, Any] = {"text": "#1 String", "pair": "#2 String", "label": "Quality"}
_QUESTIONS: dict[str, Any] = {"text": "question1", "pair": "question2", "label": "is_duplicate"}
_PASSAGE: dict[str, Any] = {"text": "question", "pair": "passage", "label": "answer", "labels": ("false", "true")}
_INFERENCE: dict[str, Any] = {
    **_SENTENCES,
    "label": "gold_label",
    "labels": ("entailment", "neutral", "contradiction"),
    "unlabelled": ("-",),  # annotators did not agree
}
_NO_HEADER: dict[str, Any] = {"text": "sentence", "header": ("source", "label", "star", "sentence")}
_GENRES: dict[str, Any] = {"evaluation": ("dev_matched",), "also": ("dev_mismatched",)}

_TABLE = [
    # GLUE (Wang et al. 2019): files as its own download script leaves them, metrics as its paper states them.
    Task("cola", "acceptability (Matthews correlation)", "CoLA", **_BINARY, **_NO_HEADER, metrics=("mcc",), **_GLUE),
    Task("sst2", "sentiment of film reviews", "SST-2", text="sentence", **_BINARY, **_GLUE),
    Task(
        "mrpc", "paraphrases", "MRPC", text="#1 String", pair="#2 String", label="Quality", **_DUPLICATES, **_FROM_MNLI
    ),
    Task("qqp", "duplicate questions", "QQP", **_QUESTIONS, **_DUPLICATES, skips_broken_rows=True, **_GLUE),
    Task("stsb", "similarity, 0 to 5", "STS-B", **_SENTENCES, label="score", **_NUMBER, **_FROM_MNLI),
    Task("mnli", "inference over genres, matched and mismatched", "MNLI", **_INFERENCE, **_GENRES, **_GLUE),
    Task("qnli", "does the sentence answer", "QNLI", text="question", pair="sentence", **_ENTAILMENT, **_GLUE),
    Task("rte", "inference", "RTE", **_SENTENCES, **_ENTAILMENT, **_FROM_MNLI),
    Task("wnli", "inference about pronouns", "WNLI", **_SENTENCES, **_BINARY, **_GLUE),
    # Other published sets, as their authors distribute them.
    Task("snli", "inference (Bowman et al. 2015), its JSON Lines", **_INFERENCE),
    Task("boolq", "yes/no questions (Clark et al. 2019), its JSON Lines", **_PASSAGE),
    Task("swag", "four endings (Zellers et al. 2018), its CSV", kind="choice", text="sent1", pair="sent2"),
    Task("squad", "answers in a text, SQuAD 1.1's JSON (Rajpurkar et al. 2016)", **_SPANS),
    Task("squad2", "answers or none, SQuAD 2.0's JSON (Rajpurkar et al. 2018)", **_SPANS, may_be_unanswerable=True),
    # Anybody's own data.
    Task("classification", "a label for a text or a pair: TSV, CSV, JSON Lines, Parquet"),
    Task("regression", "a number instead of a label", **_NUMBER),
    Task("tagging", "tags of tokens in BIO: CoNLL columns or lists in JSON Lines", **_TAGS),
]

TASKS: dict[str, Task] = {task.name: task for task in _TABLE}
SUITES: dict[str, tuple[Task, ...]] = {
    suite: tuple(task for task in _TABLE if task.suite == suite) for suite in ("glue",)
}
"""The tasks of each collection, in the order of its table."""
INTERMEDIATE: tuple[str, ...] = tuple(sorted({task.intermediate for task in _TABLE if task.intermediate}))
"""Tasks whose best model others may start from."""


def find_task(name: str, config: FinetuneConfig | None = None) -> Task:
    """Return a task, with other columns if the settings name them.

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
