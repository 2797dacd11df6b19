"""Encoded examples: sequences of token ids in the columns that the packed loader's assembly reads."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from megabert.data.shard_set import Columns
from megabert.tokenization import SpecialIds


@dataclass
class Sequences:
    """Sequences under construction."""

    special_ids: SpecialIds
    max_length: int
    has_segments: bool = True
    """Whether the second text is a segment of its own."""
    separators: int = 1
    """How many [SEP]s stand between the two texts of a pair."""
    ids: list[NDArray[np.int32]] = field(default_factory=list)
    segment_b_starts: list[int] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    targets: list[tuple[Sequence[int], Sequence[int]]] = field(default_factory=list)
    """Of each sequence, positions and their labels."""
    cut: int = 0
    """Sequences that were too long."""

    def add(
        self,
        a: NDArray[np.int32],
        b: NDArray[np.int32] | None = None,
        *,
        label: int = 0,
        targets: tuple[Sequence[int], Sequence[int]] = ((), ()),
    ) -> None:
        """Append ``[CLS] a [SEP]`` or ``[CLS] a [SEP] b [SEP]``; of a pair too long the longer loses its end first.

        Args:
            a: Ids of the first text.
            b: Ids of the second.
            label: Of the sequence.
            targets: Positions in the sequence, and a label for each.
        """
        room = self.max_length - (2 if b is None else 2 + self.separators)
        total = len(a) + (0 if b is None else len(b))
        if total > room:
            self.cut += 1
            kept_b = 0 if b is None else min(len(b), max(room // 2, room - len(a)))
            a, b = a[: room - kept_b], None if b is None else b[:kept_b]
        cls, sep = (np.array([index], np.int32) for index in (self.special_ids.cls, self.special_ids.sep))
        end: list[NDArray[np.int32]] = [sep] if b is None else [*[sep] * self.separators, b, sep]
        self.ids.append(np.concatenate([cls, a, *end]))
        has_b = b is not None and self.has_segments
        self.segment_b_starts.append(len(a) + 1 + self.separators if has_b else len(self.ids[-1]))
        self.labels.append(label)
        self.targets.append(targets)

    def columns(self) -> Columns:
        """Return all sequences, end to end."""
        positions = [np.asarray(places, np.uint16) for places, _ in self.targets]
        labels = [np.asarray(found, np.int64) for _, found in self.targets]
        return Columns(
            input_ids=np.concatenate(self.ids),
            token_starts=_starts(self.ids),
            segment_b_starts=np.array(self.segment_b_starts, np.int64),
            masked_positions=np.concatenate(positions),
            masked_ids=np.concatenate(labels),
            masked_starts=_starts(positions),
            next_sentence_labels=np.array(self.labels, np.int64),
            rows=np.arange(len(self.ids)),
        )


@dataclass(frozen=True, kw_only=True)
class Features:
    """What is packed and scored: items of one sequence, or of several that stay together."""

    columns: Columns
    group: int = 1
    """Sequences an item."""
    rows: NDArray[np.int64]
    """Rows of logits an item gives."""
    weights: NDArray[np.int64]
    """Terms of the loss an item gives: the loss is their mean."""
    scores: NDArray[np.float32] | None = None
    """Regression: the target of each item."""

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each item."""
        return self.columns.lengths.reshape(-1, self.group).sum(1)

    @cached_property
    def targets(self) -> NDArray[np.int64]:
        """Labelled positions of each item."""
        return self.columns.masked_counts.reshape(-1, self.group).sum(1)


def _starts(parts: Sequence[NDArray]) -> NDArray[np.int64]:
    return np.cumsum([0, *map(len, parts)])
