"""The definition of a kind of task."""

# T packed tokens, B sequences, M labelled positions, C outputs, R rows of logits

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

from numpy.typing import NDArray
from torch import Tensor

from megabert.downstream.finetuning.batches import Batcher, Features, Sequences, TaskBatch
from megabert.downstream.finetuning.seed_results import THRESHOLD
from megabert.downstream.finetuning.tasks import Task
from megabert.foundation.errors import DataError
from megabert.foundation.files import atomic_write
from megabert.ops.cross_entropy.api import cross_entropy
from megabert.settings.config.finetune import FinetuneConfig
from megabert.tokens.tokenization import Tokenizer


class Head(NamedTuple):
    """The layer on top of the encoder."""

    architecture: str
    """Class of encoder and head in ``transformers``, without the model's name and ``For`` before it."""
    module: str
    """Name of the last linear layer in that class."""
    pooling: Literal["sequence", "labelled", "tokens"]
    """Input of the layer: a vector per sequence (``classifier_pooling``), the labelled positions, or every token."""
    pipeline: str
    """Name of such a task on model hubs."""


@dataclass(frozen=True, kw_only=True)
class Example:
    """One example of a file."""

    where: str
    """Where the example was read, as ``file:line``, for messages."""
    line: int
    """Line of the file, from 1: a sentence's first; of Parquet the row, of SQuAD's JSON the question."""
    identity: str | None = None
    """The example's id, if the file has one."""

    def to_dict(self) -> dict[str, Any]:
        """Return line, id, texts and label, as predictions show them."""
        own = {name: value for name, value in vars(self).items() if name not in Example.__annotations__}
        identity = {} if self.identity is None else {"id": self.identity}
        return {"line": self.line, **identity, **{name: value for name, value in own.items() if value is not None}}


E = TypeVar("E", bound=Example)

Logits = Sequence[NDArray]
"""The logits of each item, of shape (rows, outputs)."""
Prediction = dict[str, Any]
"""An example with its prediction, ready for JSON; some keys depend on the kind."""


@dataclass(eq=False)
class TaskKind(ABC, Generic[E]):
    """A task of this kind, bound to its settings, its tokenizer and its labels."""

    head: ClassVar[Head]
    outputs: ClassVar[int | None] = None
    """Number of the head's outputs; None for one output per label."""
    fixed_labels: ClassVar[tuple[str, ...]] = ()
    """Names of the outputs, if examples have no labels to name them."""

    task: Task
    """The task, with the columns in use."""
    config: FinetuneConfig
    tokenizer: Tokenizer
    _: KW_ONLY
    labels: tuple[str, ...]
    """The labels in the order of their ids."""
    max_seq_length: int
    """Greatest length of a sequence in tokens."""
    has_segments: bool = True
    """Whether the model tells first and second text apart; RoBERTa does not."""

    @cached_property
    def ids(self) -> dict[str, int]:
        """Id of each label."""
        return {label: index for index, label in enumerate(self.labels)}

    @classmethod
    @abstractmethod
    def read(cls, task: Task, path: Path) -> list[E]:
        """Read a file.

        Raises:
            DataError: Something in the file is wrong; the message names file, line, value and remedy.
        """

    @classmethod
    def labels_of(cls, examples: Sequence[E]) -> tuple[str, ...]:
        """Return the labels of the training examples, in the order of their ids."""
        return cls.fixed_labels

    @property
    def num_outputs(self) -> int:
        """Number of the head's outputs."""
        return self.outputs or len(self.labels)

    @abstractmethod
    def encode(self, examples: Sequence[E], *, is_training: bool) -> Features:
        """Tokenize examples into sequences.

        Raises:
            DataError: A label is none of the training's, or an answer is not where the file says.
        """

    def loss(self, logits: Tensor, batch: TaskBatch) -> Tensor:
        """Return the loss of a micro-batch with items, summed over its terms: the cross entropy of their labels."""
        return cross_entropy(logits, batch.labels, backend=self.config.ops.cross_entropy)[0]

    def predict(self, logits: Logits, examples: Sequence[E], features: Features) -> list[Prediction]:
        """Turn the logits of all items into one prediction per example."""
        answers = self.answers(logits, examples, features)
        return [{**example.to_dict(), **answer} for example, answer in zip(examples, answers, strict=True)]

    @abstractmethod
    def answers(self, logits: Logits, examples: Sequence[E], features: Features) -> Iterable[Prediction]:
        """Yield the fields that a prediction has besides its example's."""

    @abstractmethod
    def score(self, predictions: Sequence[Prediction], examples: Sequence[E]) -> dict[str, float]:
        """Return the task's metrics, from 0 to 1 (correlations from -1 to 1)."""

    @abstractmethod
    def constant_answers(self, examples: Sequence[E]) -> Iterable[list[Prediction]]:
        """Yield the predictions of predictors that give one answer to everything, knowing the frequent ones."""

    def baseline(self, examples: Sequence[E]) -> dict[str, float]:
        """Return, for each metric, the best score of a constant answer: of an accuracy, the largest class's share."""
        scores = [self.score(predictions, examples) for predictions in self.constant_answers(examples)]
        return {name: max(score[name] for score in scores) for name in scores[0] if name != THRESHOLD}

    def judge(self, prediction: Prediction, metrics: Mapping[str, float]) -> dict[str, Any]:
        """Return the fields that a file adds to a prediction: whether it is correct.

        Args:
            prediction: One element of the list that ``predict`` returned.
            metrics: The scores of the whole list.
        """
        return {"correct": prediction["prediction"] == prediction["label"]}

    def write(self, predictions: Sequence[Prediction], metrics: Mapping[str, float], stem: Path) -> list[Path]:
        """Write predictions to files whose names begin with ``stem``, and return the files."""
        path = stem.with_name(f"{stem.name}.jsonl")
        rows = ({**row, **self.judge(row, metrics)} for row in predictions)
        atomic_write(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
        return [path]

    def id_of(self, label: str, where: str) -> int:
        """Return a label's id.

        Raises:
            DataError: The label is none of the training's.
        """
        if label not in self.ids:
            raise DataError(
                f"{where}: label {label!r:.80} is not one of those trained on: {', '.join(self.labels):.400}. Fix the "
                "label, or train on examples that have it."
            )
        return self.ids[label]

    def sequences(self) -> Sequences:
        """Return an empty list of sequences under construction."""
        return Sequences(self.tokenizer, self.max_seq_length, self.has_segments)

    def batcher(self, features: Features, *, rank: int = 0, world_size: int = 1) -> Batcher:
        """Return a batcher of features over the ranks."""
        pad_id = self.tokenizer.special_ids.pad
        return Batcher(features, self.config.micro_batch_tokens, pad_id, rank=rank, world_size=world_size)
