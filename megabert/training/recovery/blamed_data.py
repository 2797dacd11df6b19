"""Which data a run holds responsible for numbers that go wrong."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from megabert.data.position import PositionRange

Ranges = tuple[PositionRange, ...]


@dataclass(frozen=True)
class BlamedData:
    """The data of the batches in a row that were skipped, or whose loss was a spike."""

    ranges: Ranges = ()
    last_good: Ranges = ()
    """Of the last batch that was neither."""

    def after_skip(self, batch: Ranges) -> "BlamedData":
        """Blame a batch that was skipped: the weights are as they were."""
        return BlamedData(self.ranges + batch, self.last_good)

    def after_spike(self, batch: Ranges) -> "BlamedData":
        """Blame a batch whose loss was a spike, and the one before: the loss was measured before the update."""
        return BlamedData(self.ranges + self.last_good + batch)

    def after_good(self, batch: Ranges) -> "BlamedData":
        """Forget: this batch was a good one."""
        return BlamedData((), batch)

    def __str__(self) -> str:
        return ", ".join(f"epoch {epoch}: {start} to {stop - 1}" for epoch, start, stop in self.ranges)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "BlamedData":
        """Read what JSON made of the fields."""
        return cls(_ranges(values["ranges"]), _ranges(values["last_good"]))


def _ranges(values: Iterable[Iterable[int]]) -> Ranges:
    return tuple(PositionRange(*value) for value in values)
