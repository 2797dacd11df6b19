"""The band that a run's losses and accuracies should stay in: around the mean of runs of ours with other seeds.

The band is ``WIDTHS`` of the standard deviations that one more run is expected to have, on either side of the mean:

- Training values of single batches are noisy, so both sides take means of the last ``SMOOTHED`` logged values of the
  phase.
- Three values say little of a standard deviation. It is pooled over a step and its ``NEIGHBOURS`` on either side: seeds
  reach the steep part of a curve at different steps, and the band has to be as wide a little earlier and later.
- The mean of n seeds is itself off, which adds a factor sqrt(1 + 1/n). A run that logs more rarely than ours did has
  noisier means, which adds the root of the ratio of the numbers of values.
- No band is narrower than ``FLOOR``. Next-sentence accuracy is a share of a few hundred held-out instances; at first
  every seed calls all of them the same, so that their spread is 0. Its band is at least ``LEAST_WIDTHS`` binomial
  standard deviations on either side.
"""

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from megabert.tooling.measurements.reference import Reference, ReferencePhase

SMOOTHED = 5
"""Logged values of a training series in one mean."""
NEIGHBOURS = 5
"""Points on either side over which the standard deviation is pooled."""
WIDTHS = 4.0
"""Half the width of the band, in standard deviations of a fourth run."""
FLOOR = {"loss": 0.03, "accuracy": 0.005, "share": 0.005, "auc": 0.005}
"""Least half of a band by the last word of the tag: nats, or shares."""
LEAST_WIDTHS = 2.0
"""Least half of the band of next-sentence accuracy, in binomial standard deviations."""


@dataclass(frozen=True)
class BandPoint:
    """The band of one series at a step of the reference."""

    after: int
    """The mean is over the values logged after this step, up to ``step``."""
    step: int
    centre: float
    half: float
    """Half the width, for a run that logged as often as the reference."""
    values: int
    """Number of values in the mean."""


@dataclass(frozen=True)
class TrackPoint:
    """A series of a run at one step, beside its band."""

    step: int
    value: float
    low: float
    high: float

    @property
    def is_inside(self) -> bool:
        """Whether the run is on track here; a value that is no number is not."""
        return self.low <= self.value <= self.high


def bands(reference: Reference, tag: str) -> list[list[BandPoint]]:
    """Return the band of a series, for each phase its points; no point for a phase that does not have the series."""
    smoothed = SMOOTHED if tag.startswith("train/") else 1
    points: list[tuple[int, int, int, list[float], int]] = []
    for number, phase in enumerate(reference.phases):
        if tag in phase.series:
            steps, values = phase.series[tag].steps, phase.series[tag].values
            for i, step in enumerate(steps):
                first = max(0, i + 1 - smoothed)
                means = [statistics.fmean(own[first : i + 1]) for own in values]
                points.append((number, steps[first - 1] if first else 0, step, means, i + 1 - first))
    variances = [statistics.variance(means) for *_, means, _ in points]
    widths = WIDTHS * math.sqrt(1 + 1 / len(reference.seeds))
    result: list[list[BandPoint]] = [[] for _ in reference.phases]
    for i, (number, after, step, means, count) in enumerate(points):
        pooled = statistics.fmean(variances[max(0, i - NEIGHBOURS) : i + NEIGHBOURS + 1])
        centre = statistics.fmean(means)
        half = max(widths * math.sqrt(pooled), _floor(reference.phases[number], tag, centre))
        result[number].append(BandPoint(after, step, centre, half, count))
    return result


def _floor(phase: ReferencePhase, tag: str, centre: float) -> float:
    floor = FLOOR[tag.rpartition("_")[2]]
    if tag != "eval/nsp_accuracy" or not phase.held_out_instances:
        return floor
    return max(floor, LEAST_WIDTHS * math.sqrt(max(0.0, centre * (1 - centre)) / phase.held_out_instances))


def points_in_band(reference: Reference, tag: str, rows: Sequence[dict[str, Any]], *, phases: int) -> list[TrackPoint]:
    """Return a series of a run beside its band.

    Args:
        reference: The curves.
        tag: The series, as it is logged.
        rows: Rows of the run's metrics.
        phases: How many of the phases are compared.
    """
    points: list[TrackPoint] = []
    for number, band in enumerate(bands(reference, tag)[:phases], 1):
        own = [(row["step"], row[tag]) for row in rows if row.get("phase") == number and tag in row]
        points += _means(band, own) if tag.startswith("train/") else _between(band, own)
    return points


def _means(band: Sequence[BandPoint], own: Sequence[tuple[int, float]]) -> Iterator[TrackPoint]:
    """Yield means of the values that a run logged in the span of each point of the band."""
    for point in band:
        values = [value for step, value in own if point.after < step <= point.step]
        if values and own[-1][0] >= point.step:
            half = point.half * math.sqrt(max(1.0, point.values / len(values)))
            mean = statistics.fmean(values)
            yield TrackPoint(point.step, mean, point.centre - half, point.centre + half)


def _between(band: Sequence[BandPoint], own: Sequence[tuple[int, float]]) -> Iterator[TrackPoint]:
    """Yield the values of a run beside the band at their steps, a line between its points; none outside of them."""
    steps = [point.step for point in band]
    for step, value in own:
        if steps and steps[0] <= step <= steps[-1]:
            centre = float(np.interp(step, steps, [point.centre for point in band]))
            half = float(np.interp(step, steps, [point.half for point in band]))
            yield TrackPoint(step, value, centre - half, centre + half)
