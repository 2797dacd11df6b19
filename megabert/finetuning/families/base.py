"""What a family of tasks has to say."""

# T packed tokens, B sequences, M labelled positions, C outputs, R rows of logits

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

from numpy.typing import NDArray
from torch import Tensor

from megabert.config.finetune import FinetuneConfig
from megabert.errors import DataError
from megabert.finetuning.batches import TaskBatch
from megabert.finetuning.features import Features, Sequences
from megabert.finetuning.tasks import Task
from megabert.observability.logs import logger
from megabert.schema.files import atomic_write
from megabert.tokenization import Tokenizer


class Head(NamedTuple):
    """What stands on the encoder."""

    architecture: str
    """What ``transformers`` calls encoder and head, behind the model's own name: BertFor..."""
    module: str
    """Name of the last linear layer there."""
    reads: Literal["pooled", "labelled", "tokens"]
    """The pooled first token of each sequence, the labelled positions, or every token."""
    pipeline: str
    """The hub's name of such a task."""


@dataclass(frozen=True, kw_only=True)
class Example:
    """One example of a file."""

    where: str
    """``file:line``, for messages."""


E = TypeVar("E", bound=Example)


class Family(ABC, Generic[E]):
    """A task of this family, bound to its settings, its tokenizer and its labels."""

    head: ClassVar[Head]

    def __init__(
        self,
        task: Task,
        config: FinetuneConfig,
        tokenizer: Tokenizer,
        *,
        labels: tuple[str, ...],
        max_seq_length: int,
        has_segments: bool = True,
    ) -> None:
        """Bind the parts; ``labels`` are in the order of their ids; RoBERTa has no segments."""
        self.task, self.config, self.tokenizer = task, config, tokenizer
        self.labels, self.max_seq_length, self.has_segments = labels, max_seq_length, has_segments
        self.ids = {label: index for index, label in enumerate(labels)}

    @classmethod
    @abstractmethod
    def read(cls, task: Task, path: Path) -> list[E]:
        """Read a file.

        Raises:
            DataError: Names file, line, value and remedy.
        """

    @classmethod
    @abstractmethod
    def labels_of(cls, examples: Sequence[E]) -> tuple[str, ...]:
        """Return the labels of the training examples, in the order of their ids."""

    @property
    @abstractmethod
    def num_outputs(self) -> int:
        """Width of the head."""

    @abstractmethod
    def encode(self, examples: Sequence[E], *, is_training: bool) -> Features:
        """Tokenize examples into sequences.

        Raises:
            DataError: A label that training did not have, or an answer that is not where it should be.
        """

    @abstractmethod
    def loss(self, logits: Tensor, batch: TaskBatch) -> Tensor:
        """Return the summed loss of a micro-batch that has items."""

    @abstractmethod
    def predict(self, logits: Sequence[NDArray], examples: Sequence[E], features: Features) -> list[dict[str, Any]]:
        """Turn each item's logits, of shape (rows, outputs), into one JSON-able prediction an example."""

    @abstractmethod
    def score(self, predictions: Sequence[dict[str, Any]], examples: Sequence[E]) -> dict[str, float]:
        """Return the task's metrics, from 0 to 1 (correlations from -1)."""

    def write(self, predictions: Sequence[dict[str, Any]], metrics: dict[str, float], stem: Path) -> list[Path]:
        """Write predictions beside ``stem``, and return the files."""
        path = stem.with_name(f"{stem.name}.jsonl")
        atomic_write(path, json_lines(predictions))
        return [path]

    def id_of(self, label: str, where: str) -> int:
        """Return a label's id.

        Raises:
            DataError: Training has no such label.
        """
        if label not in self.ids:
            raise DataError(
                f"{where}: label {label!r} is not one of those trained on: {', '.join(self.labels)}. Mend the label, "
                "or train on examples that have it."
            )
        return self.ids[label]

    def sequences(self) -> Sequences:
        """Return an empty list of sequences under construction."""
        return Sequences(
            self.tokenizer.special_ids, self.max_seq_length, self.has_segments, self.tokenizer.separators_in_pair
        )

    def log_truncation(self, sequences: Sequences) -> None:
        """Log how many sequences lost their end."""
        if sequences.num_truncated:
            logger.info(
                "%d of %d sequences were cut to %d tokens (max_seq_length)",
                sequences.num_truncated,
                len(sequences.ids),
                self.max_seq_length,
            )


def json_lines(rows: Sequence[dict[str, Any]]) -> str:
    """Return JSON Lines."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
