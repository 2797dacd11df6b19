"""Which data a run holds responsible for numbers that go wrong."""

from dataclasses import dataclass

from megabert.data.order import PositionRange

Ranges = tuple[PositionRange, ...]


@dataclass(frozen=True)
class BlamedData:
    """The data of the latest batches in a row that were skipped, or whose loss was a spike.

    A rollback leaves these instances out when it repeats the steps that went wrong.
    """

    ranges: Ranges = ()
    """Instances that are blamed, in the order in which they were read."""
    last_good: Ranges = ()
    """Instances of the last batch that was neither skipped nor a spike."""

    def after_skip(self, batch: Ranges) -> "BlamedData":
        """Blame a batch that was skipped. It alone is at fault, since it changed no weight."""
        return BlamedData(self.ranges + batch, self.last_good)

    def after_spike(self, batch: Ranges) -> "BlamedData":
        """Blame a batch whose loss was a spike, and the batch before it.

        The loss of a step is computed before its update, so that bad weights show one batch later than the batch that
        spoiled them.
        """
        return BlamedData(self.ranges + self.last_good + batch)

    def after_good(self, batch: Ranges) -> "BlamedData":
        """Blame nothing any more: this batch was a good one."""
        return BlamedData((), batch)

    def __str__(self) -> str:
        return ", ".join(f"epoch {epoch}: {start} to {stop - 1}" for epoch, start, stop in self.ranges)
