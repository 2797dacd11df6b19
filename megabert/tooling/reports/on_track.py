"""Whether a run is on track: its losses and accuracies in a band around the mean of runs of ours with other seeds.

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
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from megabert.foundation.errors import CheckpointError, DataError, MegabertError
from megabert.foundation.text_tables import render_table
from megabert.observability.metrics import read_metrics
from megabert.settings.config.loading import differences
from megabert.settings.config.run import RunConfig
from megabert.tokens.shards.folder import read_manifest
from megabert.tooling.measurements.reference import (
    FOLDER,
    SERIES,
    Reference,
    ReferencePhase,
    describe_end,
    describe_expected,
    read_reference,
    reference_for,
    science_fields,
    shipped_references,
)
from megabert.training.run.folder import read_config, run_sources

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


class BandPoint(NamedTuple):
    """The band of one series at a step of the reference."""

    after: int
    """The mean is over the values logged after this step, up to ``step``."""
    step: int
    centre: float
    half: float
    """Half the width, for a run that logged as often as the reference."""
    values: int
    """Number of values in the mean."""


class TrackPoint(NamedTuple):
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


def points_in_band(reference: Reference, tag: str, rows: Sequence[dict], *, phases: int) -> Iterator[TrackPoint]:
    """Yield a series of a run next to its band.

    Args:
        reference: The curves.
        tag: The series, as it is logged.
        rows: Rows of the run's metrics.
        phases: How many of the phases are compared.
    """
    for number, band in enumerate(bands(reference, tag)[:phases], 1):
        own = [(row["step"], row[tag]) for row in rows if row.get("phase") == number and tag in row]
        yield from _means(band, own) if tag.startswith("train/") else _between(band, own)


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


OTHER_SHARDS = "other ones than the reference's (another text, vocabulary or masks), so losses cannot be compared"


class Track(NamedTuple):
    """A run beside a reference."""

    run_dir: Path
    reference: Reference
    config: dict[str, tuple[Any, Any]]
    """Both values, the reference's first, of each field that the result depends on and that differs, by path."""
    has_same_shards: bool | None
    """Whether the shards of the phases that are compared are the reference's; None if they are no longer there."""
    step: int
    """Last step that the run logged."""
    series: dict[str, list[TrackPoint]]

    @property
    def is_on_track(self) -> bool:
        """Whether every series is within its band at its last point, and the shards are not known to be others."""
        return self.has_same_shards is not False and all(points[-1].is_inside for points in self.series.values())

    @property
    def first_outside(self) -> tuple[str, TrackPoint] | None:
        """The series that left its band first, and where."""
        first = [(tag, next((p for p in points if not p.is_inside), None)) for tag, points in self.series.items()]
        return min(((tag, p) for tag, p in first if p is not None), key=lambda entry: entry[1].step, default=None)


def compare_with_curves(run_dir: Path, curves: Path | None = None) -> Track:
    """Compare a run with the curves of its recipe.

    Args:
        run_dir: Run folder.
        curves: A file of curves; None takes the file that the package ships of the run's recipe.

    Raises:
        CheckpointError: The folder is no run folder, or nothing was logged at a step of the curves yet.
        DataError: There are no curves of this recipe, vocabulary or length, or the file is damaged.
    """
    config, rows = read_config(run_dir), read_metrics(run_dir)
    shards = shards_of(run_dir, config)
    reference = _chosen(run_dir, config, shards) if curves is None else read_reference(curves)
    phases = _refuse_unlike(run_dir, config, reference, curves)
    series = {tag: list(points_in_band(reference, tag, rows, phases=phases)) for tag in SERIES}
    series = {tag: points for tag, points in series.items() if points}
    if not series:
        raise CheckpointError(
            f"{run_dir / 'metrics.jsonl'}: nothing was logged that the curves have, whose first step is "
            f"{min(s.steps[0] for s in reference.phases[0].series.values())}. Compare again later."
        )
    own, others = shards[:phases], reference.data_sha256[:phases]
    return Track(
        run_dir=run_dir,
        reference=reference,
        config=differences(reference.config, science_fields(config)),
        has_same_shards=None if None in own else own == others,
        step=max(row["step"] for row in rows),
        series=series,
    )


def shards_of(run_dir: Path, config: RunConfig) -> list[str | None]:
    """Return the identity of each phase's shards, of several sources joined; None if they are not there."""
    found: list[str | None] = []
    for phase in config.phases:
        try:
            folders = run_sources(run_dir, config, phase)
            found.append("+".join(read_manifest(folder).data_sha256 for folder in folders))
        except MegabertError:
            found.append(None)
    return found


def render_track(track: Track) -> str:
    """Return the comparison as text; the last line is the verdict."""
    reference = track.reference
    lines = [
        f"run: {track.run_dir}, step {track.step}",
        f"reference: {reference.recipe} on {reference.text}, seeds {', '.join(map(str, reference.seeds))}, commit "
        f"{reference.commit}, {reference.device}",
        f"its end: {describe_end(reference)}",
    ]
    if track.has_same_shards is not True:
        lines.append("shards: " + ("not there" if track.has_same_shards is None else OTHER_SHARDS))
        lines += [f"the reference's are built by: {command}" for command in reference.commands if " build " in command]
    lines += [f"{path}: {old!r} in the reference, {new!r} in the run" for path, (old, new) in track.config.items()]
    rows = [
        (tag, last.step, f"{last.value:.4f}", f"{last.low:.4f} to {last.high:.4f}", _describe_outside(points))
        for tag, points in track.series.items()
        for last in points[-1:]
    ]
    headers = ("series", "step", "run", "band", "outside at steps")
    lines += ["", render_table(rows, headers=headers, align="lrrll"), "", _verdict(track)]
    return "\n".join(lines)


def track_as_dict(track: Track) -> dict[str, Any]:
    """Return the comparison as values for JSON."""
    first = track.first_outside
    return {
        "on_track": track.is_on_track,
        "step": track.step,
        "first_outside": None if first is None else {"series": first[0], **first[1]._asdict()},
        "same_shards": track.has_same_shards,
        "config": track.config,
        "series": {tag: [{**p._asdict(), "inside": p.is_inside} for p in ps] for tag, ps in track.series.items()},
    }


def _chosen(run_dir: Path, config: RunConfig, shards: list[str | None]) -> Reference:
    """Return the shipped curves of a run's recipe."""
    reference = reference_for(config, shards)
    if reference is not None:
        return reference
    sizes = [one.vocab_size for one in shipped_references(config.name)]
    if sizes:
        raise DataError(
            f"{run_dir}: its vocabulary has {config.model.vocab_size} pieces, the curves of {config.name} are of "
            f"{' and '.join(map(str, sizes))}: losses over different pieces cannot be compared. Build shards with that "
            "--vocab-size, or name a file of curves: compare RUN FILE.json"
        )
    known = sorted({path.stem.partition("-")[0] for path in FOLDER.glob("*.json")})
    expected = "".join(f"\n{line}" for line in describe_expected(config.name))
    raise DataError(
        f"{run_dir}: there are no curves of recipe {config.name}; there are of {', '.join(known)}. Compare two runs, "
        f"or name a file of curves: compare RUN FILE.json{expected}"
    )


def _refuse_unlike(run_dir: Path, config: RunConfig, reference: Reference, curves: Path | None) -> int:
    """Refuse curves of another recipe, vocabulary or length; return how many phases can be compared."""
    pairs = zip(config.phases, reference.phases, strict=False)
    alike = [own.max_seq_length == other.max_seq_length for own, other in pairs]
    phases = [*alike, False].index(False)
    differing = {
        "recipe": (config.name, reference.recipe),
        "model.vocab_size": (config.model.vocab_size, reference.vocab_size),
        "phases.0.max_seq_length": (config.phases[0].max_seq_length, reference.phases[0].max_seq_length),
    }
    for field, (own, other) in differing.items():
        if own != other:
            raise DataError(
                f"{run_dir}: {field} is {own}, the curves{f' in {curves}' if curves else ''} are of {other}: they "
                "cannot be compared. Name curves of such runs, or compare two runs."
            )
    return phases


def _describe_outside(points: Sequence[TrackPoint]) -> str:
    """Return the spans of steps at which a series was outside of its band."""
    spans = [[p.step for p in span] for is_inside, span in groupby(points, key=lambda p: p.is_inside) if not is_inside]
    return ", ".join(f"{span[0]}" if span[0] == span[-1] else f"{span[0]} to {span[-1]}" for span in spans) or "-"


def _verdict(track: Track) -> str:
    parts = [f"{'' if track.is_on_track else 'not '}on track at step {track.step}"]
    parts += [OTHER_SHARDS] * (track.has_same_shards is False)
    if track.first_outside is not None:
        tag, point = track.first_outside
        place = f"{point.value:.4f}, not {point.low:.4f} to {point.high:.4f}"
        parts.append(f"outside of the band first at step {point.step}: {tag} is {place}")
    return "; ".join(parts)
