"""The position of a run in its data: (epoch, offset, skipped ranges), saved with every checkpoint.

It counts instances, not steps or shards, so a run can be resumed with another number of ranks or another batch size.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from pydantic import NonNegativeInt

from megabert.errors import DataError


class PositionRange(NamedTuple):
    """Positions ``start`` to ``stop - 1`` in the permuted order of one epoch."""

    epoch: NonNegativeInt
    start: NonNegativeInt
    stop: NonNegativeInt

    @property
    def size(self) -> int:
        """Number of positions."""
        return self.stop - self.start


@dataclass(frozen=True)
class DataPosition:
    """The next instance to read, and the instances that are never read.

    Attributes:
        epoch: Number of complete passes over the data.
        offset: Position of the next instance in the epoch's order (see ``permutation``). Where it equals the number of
            rows, or is inside a skipped range, reading continues behind it.
        skipped: Ranges that are left out, sorted and not overlapping: instances blamed for spikes or non-finite losses.
    """

    epoch: NonNegativeInt
    offset: NonNegativeInt
    skipped: tuple[PositionRange, ...] = ()

    def take(self, count: int, num_rows: int) -> tuple[tuple[PositionRange, ...], "DataPosition"]:
        """Return the ranges that hold the next ``count`` instances, in order, and the position after them.

        Args:
            count: Number of instances to take; they may run over the end of one or several epochs.
            num_rows: Number of rows in an epoch.

        Raises:
            DataError: If an epoch has no rows.
        """
        if num_rows < 1:
            raise DataError("the split has no instances. Build shards from more text, or read another split.")
        taken: list[PositionRange] = []
        epoch, offset = self.epoch, self.offset
        # From one free range to the next: up to a skipped range, behind it, into the next epoch.
        while count > 0:
            free = self._next_free(epoch, offset, num_rows)
            if free is None:
                epoch, offset = epoch + 1, 0
                continue
            start, limit = free
            stop = min(start + count, limit)
            taken.append(PositionRange(epoch, start, stop))
            count -= stop - start
            offset = stop
        return tuple(taken), replace(self, epoch=epoch, offset=offset)

    def skipping(self, ranges: tuple[PositionRange, ...]) -> "DataPosition":
        """Return this position with more ranges skipped; ranges that overlap or touch become one."""
        merged: list[PositionRange] = []
        for current in sorted((*self.skipped, *ranges)):
            if current.size <= 0:
                continue
            if merged and merged[-1].epoch == current.epoch and current.start <= merged[-1].stop:
                merged[-1] = merged[-1]._replace(stop=max(merged[-1].stop, current.stop))
            else:
                merged.append(current)
        return replace(self, skipped=tuple(merged))

    def _next_free(self, epoch: int, offset: int, num_rows: int) -> tuple[int, int] | None:
        """Return the first range (start, limit) from ``offset`` on that is not skipped; None if the epoch ends."""
        for skipped in self.skipped:
            if skipped.epoch != epoch or skipped.stop <= offset:
                continue
            if offset < skipped.start:
                return offset, min(skipped.start, num_rows)
            offset = skipped.stop
        return (offset, num_rows) if offset < num_rows else None


BEGINNING = DataPosition(epoch=0, offset=0)
"""The first instance of the first epoch."""
