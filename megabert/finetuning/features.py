"""Encoded examples: token sequences in the columns that the packed loader's assembly reads, and their labels."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from megabert.data.sequences import columns_of
from megabert.data.shard_set import Columns
from megabert.observability.logs import logger
from megabert.tokenization import SpecialIds


@dataclass
class Sequences:
    """A list of sequences that grows example by example."""

    special_ids: SpecialIds
    max_length: int
    has_segments: bool = True
    """Whether the second text is a segment of its own."""
    separators: int = 1
    """Number of [SEP] tokens between the two texts of a pair."""
    ids: list[NDArray[np.int32]] = field(default_factory=list)
    segment_b_starts: list[int] = field(default_factory=list)
    num_truncated: int = 0
    """Sequences that were too long and lost their end."""

    def add(self, a: NDArray[np.int32], b: NDArray[np.int32] | None = None) -> None:
        """Append ``[CLS] a [SEP]`` or ``[CLS] a [SEP] b [SEP]``.

        A pair that is too long is truncated as in google-research/bert: the longer text loses its end first.

        Args:
            a: Ids of the first text.
            b: Ids of the second text.
        """
        # Of a pair that is too long, ``b`` keeps what it has if that is less than half of the room, else half of it or
        # whatever ``a`` leaves. So both are cut to the same length, or only the longer one is cut.
        room = self.max_length - (2 if b is None else 2 + self.separators)
        total = len(a) + (0 if b is None else len(b))
        if total > room:
            self.num_truncated += 1
            kept_b = 0 if b is None else min(len(b), max(room // 2, room - len(a)))
            a, b = a[: room - kept_b], None if b is None else b[:kept_b]
        cls, sep = (np.array([index], np.int32) for index in (self.special_ids.cls, self.special_ids.sep))
        end: list[NDArray[np.int32]] = [sep] if b is None else [*[sep] * self.separators, b, sep]
        self.ids.append(np.concatenate([cls, a, *end]))
        has_b = b is not None and self.has_segments
        self.segment_b_starts.append(len(a) + 1 + self.separators if has_b else len(self.ids[-1]))

    def columns(self) -> Columns:
        """Return all sequences, end to end, and log how many of them lost their end."""
        if self.num_truncated:
            logger.info(
                "%d of %d sequences were cut to %d tokens (max_seq_length)",
                self.num_truncated,
                len(self.ids),
                self.max_length,
            )
        return columns_of(self.ids, self.segment_b_starts)


@dataclass(frozen=True, kw_only=True)
class Features:
    """The items that are packed and scored. An item is one sequence, or several that stay together."""

    columns: Columns
    labels: NDArray
    """What the loss compares the logits with.

    One row an item: the id of its class, its score (float32), the number of its ending, or its answer's first and last
    token (shape (items, 2), counted from the start of the sequence). Tagging has one row a tagged word instead.
    """
    label_positions: NDArray[np.int64] | None = None
    """Tagging: the token, counted from the start of its sequence, that each label belongs to."""
    group: int = 1
    """Sequences in one item."""
    rows: NDArray[np.int64]
    """Rows of logits that each item gives."""

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each item."""
        return self.columns.lengths.reshape(-1, self.group).sum(1)

    def count_terms(self, items: NDArray[np.int64]) -> int:
        """Return the number of terms of some items' loss: one for each item, or for each tagged word."""
        return len(items) if self.label_positions is None else int(self.rows[items].sum())

    @cached_property
    def _label_starts(self) -> NDArray[np.int64]:
        """Tagging: index of each item's first label."""
        return np.cumsum(self.rows) - self.rows

    def select_labels(
        self, items: NDArray[np.int64], starts: NDArray[np.int64]
    ) -> tuple[NDArray, NDArray[np.int64] | None]:
        """Return the labels of some items, and for tagging where they are in a packed micro-batch.

        Args:
            items: The items of the micro-batch, in its order.
            starts: The packed token at which each of them starts.
        """
        if self.label_positions is None:
            return self.labels[items], None
        counts = self.rows[items]
        # Labels of all items are stored end to end: shift each item's range of indices to where it is stored.
        shifts = self._label_starts[items] - (np.cumsum(counts) - counts)
        indices = np.arange(counts.sum()) + np.repeat(shifts, counts)
        return self.labels[indices], self.label_positions[indices] + np.repeat(starts, counts)
