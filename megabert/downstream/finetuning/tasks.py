"""The tasks, as a table: kind, files, columns, labels, metrics."""

from collections.abc import Container, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from megabert.foundation.errors import ConfigError
from megabert.settings.command_line.program import refuse_flags
from megabert.settings.config.finetune import FinetuneConfig
from megabert.settings.config.loading import to_dict
from megabert.settings.config.names import did_you_mean
from megabert.settings.config.needs import FINETUNE_NEEDS, refuse_idle

COLUMNS = ("text", "pair", "label")
"""Fields of a task that name columns; a configuration has ``text_column`` and so on."""
USUAL_EVALUATION = ("dev", "validation", "valid", "test")
"""Stems of an evaluation file that has no name of its own; without another one it is the test file."""
TaskKindName = Literal["sequence", "regression", "choice", "span", "tagging", "characters"]


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
    skips_broken_rows: bool = False
    """Whether rows with a wrong number of columns are left out, which the log says, instead of refused."""

    def metrics_in(self, found: Container[str]) -> tuple[str, ...]:
        """Return the task's metrics that a result has, or its accuracy if it has none of them."""
        return tuple(name for name in self.metrics if name in found) or ("accuracy",)


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

_KORQUAD_FILES: dict[str, Any] = {"train": ("KorQuAD_v1.0_train",), "evaluation": ("KorQuAD_v1.0_dev",)}
_TAG_TYPES = ("PS", "LC", "OG", "DT", "TI", "QT")  # person, location, organisation, date, time, quantity
_RELATIONS = (
    "org: dissolved founded place_of_headquarters alternate_names member_of members political/religious_affiliation "
    "product founded_by top_members/employees number_of_employees/members",
    "per: date_of_birth date_of_death place_of_birth place_of_death place_of_residence origin employee_of "
    "schools_attended alternate_names parents children siblings spouse other_family colleagues product religion title",
)


def _relation_names() -> tuple[str, ...]:
    parts = [(names.split()[0], names.split()[1:]) for names in _RELATIONS]
    return ("no_relation", *(f"{prefix}{name}" for prefix, names in parts for name in names))


def _klue(name: str) -> dict[str, Any]:
    """Return the folder and the files of a set of KLUE 1.1."""
    stem = f"{name}-v1.1"
    return {"suite": "klue", "folder": stem, "train": (f"{stem}_train",), "evaluation": (f"{stem}_dev",)}


def _distributed(train: str, evaluation: str, **others: Any) -> dict[str, Any]:
    """Return the files of a set under its authors' names or the usual ones."""
    return {"train": (train, "train"), "evaluation": (evaluation, *USUAL_EVALUATION), **others}


_SIMILARITY: dict[str, Any] = {
    **_SENTENCES,
    "kind": "regression",
    "label": "labels.real-label",
    "metrics": ("pearson", "f1_of_similar"),
}
_HYPOTHESIS: dict[str, Any] = {
    "text": "premise",
    "pair": "hypothesis",
    "label": "gold_label",
    "labels": ("entailment", "contradiction", "neutral"),
}
_CHARACTERS: dict[str, Any] = {
    "kind": "characters",
    "labels": (*(f"{prefix}-{name}" for name in _TAG_TYPES for prefix in "BI"), "O"),
    "metrics": ("entity_macro_f1", "char_macro_f1"),
}
_RELATION: dict[str, Any] = {
    "text": "sentence",
    "entities": ("subject_entity", "object_entity"),
    "labels": _relation_names(),
    "metrics": ("micro_f1", "auprc"),
}
_ANSWERS_OR_NONE: dict[str, Any] = {
    **_SPANS,
    "metrics": ("exact", "rouge_w"),
    "may_be_unanswerable": True,
    "answers": "klue",
}
_KOREAN_SPANS: dict[str, Any] = {**_SPANS, **_KORQUAD_FILES, "metrics": ("exact", "f1"), "answers": "korquad"}
_SQUAD: dict[str, Any] = {**_SPANS, **_distributed("train-v1.1", "dev-v1.1")}
_SQUAD2: dict[str, Any] = {**_SPANS, **_distributed("train-v2.0", "dev-v2.0"), "may_be_unanswerable": True}
_SNLI: dict[str, Any] = _distributed("snli_1.0_train", "snli_1.0_dev", test=("snli_1.0_test", "test"))
_ENDINGS: dict[str, Any] = {"text": "sent1", "pair": "sent2", "evaluation": ("val", *USUAL_EVALUATION)}

_TABLE = [
    # GLUE (Wang et al. 2019): files as its own download script leaves them, metrics as its paper states them.
    Task("cola", "acceptability (Matthews correlation)", "CoLA", **_BINARY, **_NO_HEADER, metrics=("mcc",), **_GLUE),
    Task("sst2", "sentiment of film reviews", "SST-2", text="sentence", **_BINARY, **_GLUE),
    Task("mrpc", "paraphrases", "MRPC", **_STRINGS, **_DUPLICATES, **_FROM_MNLI),
    Task("qqp", "duplicate questions", "QQP", **_QUESTIONS, **_DUPLICATES, skips_broken_rows=True, **_GLUE),
    Task("stsb", "similarity, 0 to 5", "STS-B", **_SENTENCES, label="score", **_NUMBER, **_FROM_MNLI),
    Task("mnli", "inference over genres, matched and mismatched", "MNLI", **_INFERENCE, **_GENRES, **_GLUE),
    Task("qnli", "does the sentence answer", "QNLI", text="question", pair="sentence", **_ENTAILMENT, **_GLUE),
    Task("rte", "inference", "RTE", **_SENTENCES, **_ENTAILMENT, **_FROM_MNLI),
    Task("wnli", "inference about pronouns", "WNLI", **_SENTENCES, **_BINARY, **_GLUE),
    # KLUE (Park et al. 2021): files of its repository, metrics of its baseline. Its test sets are not published.
    Task("ynat", "topics of headlines (KLUE)", text="title", metrics=("macro_f1",), **_klue("ynat")),
    Task("klue_sts", "similarity, 0 to 5 (KLUE)", **_SIMILARITY, **_klue("klue-sts")),
    Task("klue_nli", "inference (KLUE)", **_HYPOTHESIS, **_klue("klue-nli")),
    Task("klue_ner", "entities by characters (KLUE)", **_CHARACTERS, **_klue("klue-ner")),
    Task("klue_re", "relations of two entities (KLUE)", **_RELATION, **_klue("klue-re")),
    Task("klue_mrc", "answers or none (KLUE)", **_ANSWERS_OR_NONE, **_klue("klue-mrc")),
    # Other published sets, as their authors distribute them.
    Task("snli", "inference (Bowman et al. 2015), its JSON Lines", **_INFERENCE, **_SNLI),
    Task("boolq", "yes/no questions (Clark et al. 2019), its JSON Lines", **_PASSAGE),
    Task("swag", "four endings (Zellers et al. 2018), its CSV", kind="choice", **_ENDINGS),
    Task("squad", "answers in a text, SQuAD 1.1's JSON (Rajpurkar et al. 2016)", **_SQUAD),
    Task("squad2", "answers or none, SQuAD 2.0's JSON (Rajpurkar et al. 2018)", **_SQUAD2),
    Task("korquad", "answers in a text, KorQuAD 1.0's JSON (Lim et al. 2019)", "KorQuAD", **_KOREAN_SPANS),
    # Anybody's own data.
    Task("classification", "a label for a text or a pair: TSV, CSV, JSON Lines, Parquet"),
    Task("regression", "a number instead of a label", **_NUMBER),
    Task("tagging", "tags of tokens in BIO: CoNLL columns or lists in JSON Lines", **_TAGS),
]

TASKS: dict[str, Task] = {task.name: task for task in _TABLE}
SUITES: dict[str, tuple[Task, ...]] = {
    suite: tuple(task for task in _TABLE if task.suite == suite) for suite in ("glue", "klue")
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


def refuse_idle_settings(
    given: Sequence[str], tasks: Sequence[Task], config: FinetuneConfig, *, are_folders: bool
) -> None:
    """Refuse settings that have no effect on any of some sets.

    Args:
        given: The fields of the configuration that were given.
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
    given = [name for name in COLUMNS if getattr(task, name) != getattr(TASKS[task.name], name)]
    if given:
        flags = ", ".join(f"--{name}-column {getattr(task, name)}" for name in given)
        raise ConfigError(f"{path}: has no named columns, so {flags} means nothing. Leave it out, or give a table.")
