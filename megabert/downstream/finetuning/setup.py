"""Model, tokenizer, files and labels of a fine-tuning, read and checked before anything is written."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from megabert.downstream.export.huggingface import reads_segments
from megabert.downstream.export.sources import Source, open_source
from megabert.downstream.finetuning.batches import Features
from megabert.downstream.finetuning.model import architecture_of
from megabert.downstream.finetuning.rates import resolve_rate
from megabert.downstream.finetuning.tables import READERS
from megabert.downstream.finetuning.task_kinds import TaskKind, kind_of_task
from megabert.downstream.finetuning.tasks import COLUMNS, Task
from megabert.downstream.finetuning.trainer import EvaluationSet
from megabert.foundation.errors import ConfigError, DataError
from megabert.foundation.files import sha256_file
from megabert.foundation.randomness.keyed import stream, string_key
from megabert.observability.logs import logger
from megabert.settings.config.finetune import FinetuneConfig
from megabert.settings.config.model import ModelConfig
from megabert.tokens.tokenization import Tokenizer
from megabert.tokens.tokenization.huggingface import check_links

ALL_SUFFIXES = (*READERS, ".conll", ".bio", ".iob", ".iob2")
"""Suffixes of tables, then of files with CoNLL columns."""
USUAL_LENGTHS = {"span": 384}
"""Value of ``max_seq_length=auto`` for a kind of task; other kinds take 128."""
READINGS = {
    "tagging": "a line's first column is the word, its last the tag, a blank line ends a sentence",
    "characters": "a line is a character and its tag, a blank line ends a sentence",
    "span": "in SQuAD's form",
}
"""Reading of files without named columns, by kind of task."""
HELD_OUT, MOST_LABELS = "held_out", 20
_DRAW_KEY = string_key("finetuning/setup")

Item = TypeVar("Item")


class Prepared(NamedTuple):
    """A fine-tuning that is ready to run."""

    source: Source
    model: ModelConfig
    """The source's shape with the dropout of the fine-tuning."""
    kind: TaskKind
    """The task, bound to its settings."""
    train: Features
    evaluation: list[EvaluationSet]
    identity: dict[str, str]
    """SHA-256 of the tokenizer and of every data file."""
    rate: str
    """The learning rate, and its reason."""
    longest: int | None
    """Longest length that the result has been trained on; None if the source does not state its own."""

    def describe(self) -> str:
        """Return how the files were read, in which order the labels are the outputs of the head, and the rate."""
        task, config = self.kind.task, self.kind.config
        columns = ", ".join(f"{name} {value!r}" for name in COLUMNS if (value := getattr(task, name)))
        read = READINGS.get(task.kind, f"{'no line' if task.header else 'the first line'} names columns; {columns}")
        labels = ", ".join(self.kind.labels[:MOST_LABELS]) + ", ..." * (len(self.kind.labels) > MOST_LABELS)
        held_out = f"; {config.held_out:.0%} of them held out" * (self.evaluation[0].name == HELD_OUT)
        return (
            f"{config.data}: read as UTF-8, {read}{held_out}"
            + f"; labels in order: {labels}" * bool(labels)
            + f"\n{self.rate}"
        )


def prepare(task: Task, config: FinetuneConfig) -> Prepared:
    """Read and encode everything; a pure function of its arguments and the files.

    Raises:
        ConfigError: The model cannot be fine-tuned, or a setting does not fit it.
        DataError: A file, a label or the tokenizer is wrong.
        CheckpointError: The weights are damaged or senseless.
    """
    source = open_source(config.model, config.checkpoint)
    # Refuses, before hours of training, a model whose result transformers could not load.
    architecture_of(source.model.family, kind_of_task(task).head.architecture)
    config, rate = resolve_rate(config, source.model.hidden_size)
    tokenizer = source.load_tokenizer()
    check_links(source.tokenizer_dir)  # now, since the result gets a copy of it
    train_path, evaluation_paths = find_labelled_files(task, config)
    reader = kind_of_task(task)
    train = read_examples(task, train_path)
    sets = {path.stem: read_examples(task, path) for path in evaluation_paths}
    if not sets:
        train, sets[HELD_OUT] = split(train, config.held_out, train_path)
    train = subset(train, config.max_train_examples)
    # Read even if the task names its labels: examples with a single label are refused, there is nothing to learn.
    labels = reader.labels_of(train)
    kind = bind_kind(task, _with_trained_length(task, config, source), source.model, tokenizer, task.labels or labels)
    encoded = kind.encode(train, is_training=True)
    sets = {name: subset(examples, config.max_eval_examples) for name, examples in sets.items()}
    evaluation = [EvaluationSet(name, own, kind.encode(own, is_training=False)) for name, own in sets.items()]
    if not config.random_weights:  # read now, so that bad ones are refused here, and held until their first use
        weights, held = source.weights, [source.weights.read()]
        source = replace(source, weights=replace(weights, read=lambda: held.pop() if held else weights.read()))
    before = 0 if config.random_weights else source.trained_length()  # a run may delete its checkpoint later
    return Prepared(
        source=source,
        model=replace(
            source.model,
            hidden_dropout_prob=config.hidden_dropout_prob,
            attention_probs_dropout_prob=config.attention_probs_dropout_prob,
            generator_size=None,  # of an ELECTRA only the discriminator is fine-tuned
        ),
        kind=kind,
        train=encoded,
        evaluation=evaluation,
        identity={
            "tokenizer": tokenizer.sha256,
            "training file": sha256_file(train_path),
            **{f"evaluation file {path.name}": sha256_file(path) for path in evaluation_paths},
        },
        rate=rate,
        longest=None if before is None else max(before, kind.max_seq_length),
    )


def read_examples(task: Task, path: Path) -> list[Any]:
    """Return the examples of a file.

    Raises:
        DataError: There are none, or something in the file is wrong.
    """
    examples = kind_of_task(task).read(task, path)
    if not examples:
        raise DataError(f"{path}: holds no examples. Name a file with rows, sentences or questions.")
    return examples


def _with_trained_length(task: Task, config: FinetuneConfig, source: Source) -> FinetuneConfig:
    """Return the settings without a length that the model was not trained on, unless it was asked for."""
    length = config.max_seq_length
    wanted = USUAL_LENGTHS.get(task.kind, 128) if length == "auto" else length
    if config.random_weights or wanted <= (most := source.longest):  # asked last: it looks for a checkpoint
        return config
    what = f"{most} are taken" if length == "auto" else "later positions begin untrained"
    logger.warning("max_seq_length=%s: %s was trained on %d tokens, as it states; %s", length, config.model, most, what)
    return replace(config, max_seq_length=most) if length == "auto" else config


def bind_kind(
    task: Task,
    config: FinetuneConfig,
    model: ModelConfig,
    tokenizer: Tokenizer,
    labels: tuple[str, ...],
    *,
    usual: int | None = None,
) -> TaskKind:
    """Return the task's kind, bound to settings, labels and a model.

    ``usual`` is the value of ``max_seq_length=auto``; None takes the one for the kind of task.

    Raises:
        ConfigError: The model has fewer positions than sequences may have tokens.
    """
    limit, usual = model.max_position_embeddings, usual or USUAL_LENGTHS.get(task.kind, 128)
    length = min(usual, limit) if config.max_seq_length == "auto" else config.max_seq_length
    if length > limit:
        raise ConfigError(
            f"max_seq_length={length} is above the {limit} positions of {config.model}. Set it to {limit} or less."
        )
    kind = kind_of_task(task)
    has_segments = reads_segments(model, tokenizer)
    return kind(task, config, tokenizer, labels=labels, max_seq_length=length, has_segments=has_segments)


def find_labelled_files(task: Task, config: FinetuneConfig) -> tuple[Path, tuple[Path, ...]]:
    """Find the training file and the evaluation files; the first of these picks the best weights.

    If the training file is the only one, there are no evaluation files: a share of it is held out.

    Raises:
        DataError: There are none.
    """
    data = Path(config.data)
    given = (Path(config.eval_data),) if config.eval_data else ()
    if data.is_file():
        return data, given
    train = find_file(data, task.train)
    return train, given or (find_file(data, task.evaluation), *(find_file(data, (stem,)) for stem in task.also))


def find_file(folder: Path, stems: Sequence[str]) -> Path:
    """Return the first file in a folder that has one of these stems and a known suffix.

    Raises:
        DataError: There is none.
    """
    for stem in stems:
        for suffix in ALL_SUFFIXES:
            if (folder / f"{stem}{suffix}").is_file():
                return folder / f"{stem}{suffix}"
    wanted = " or ".join(f"{stem}.*" for stem in stems)
    raise DataError(
        f"{folder}: {'no ' + wanted if folder.is_dir() else 'no such file or folder'}. Name a folder that holds it "
        f"(suffixes {', '.join(ALL_SUFFIXES)}), or files: --data FILE --eval-data FILE."
    )


def split(examples: list[Item], share: float, path: Path) -> tuple[list[Item], list[Item]]:
    """Set a share of the examples aside, the same ones each time; both parts keep the order of the file."""
    held_out = max(1, round(len(examples) * share))
    if held_out >= len(examples):
        raise DataError(f"{path}: {len(examples)} example is too few to hold any out. Name --eval-data, or add more.")
    chosen = draw_indices(len(examples), held_out)
    rest = sorted({*range(len(examples))} - set(chosen))
    return [examples[index] for index in rest], [examples[index] for index in chosen]


def subset(examples: list[Item], size: int) -> list[Item]:
    """Return a fixed random subset, in the order of the file; 0 takes all."""
    whole = not size or size >= len(examples)
    return examples if whole else [examples[index] for index in draw_indices(len(examples), size)]


def draw_indices(count: int, size: int) -> list[int]:
    """Return ``size`` of the numbers below ``count`` in order: drawn, because a file may be sorted by label."""
    keys = stream(_DRAW_KEY, np.arange(count))
    return sorted(np.argsort(keys)[:size].tolist())
