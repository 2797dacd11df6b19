"""Curves of a run as PNGs, also of the minimal pairs that it scored (`validation.probes`), and the page about it.

The page is one HTML file of pictures and tables, which holds everything, loads nothing, and follows light and dark.
"""

import base64
import html
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from megabert.foundation.errors import MegabertError
from megabert.foundation.figures import NAME_LENGTH, Figure, png_of
from megabert.foundation.files import atomic_write, read_small
from megabert.foundation.text_tables import render_table
from megabert.observability.metrics import read_metrics
from megabert.optim.schedules import planned_steps
from megabert.settings.command_line.terminal import printable
from megabert.settings.config.loading import split_fork
from megabert.settings.config.run import RunConfig
from megabert.tooling.measurements.reference import Reference, reference_for
from megabert.tooling.reports.on_track import Track, bands, shards_of
from megabert.tooling.reports.report import PhaseReport
from megabert.tooling.reports.watch import read_overview
from megabert.training.run.folder import read_config

_ACCURACIES = {
    "train/mlm_accuracy": "masked-LM, training",
    "eval/mlm_accuracy": "masked-LM, held out",
    "eval/nsp_accuracy": "next sentence, held out",
}
CURVES: tuple[tuple[str, float, dict[str, str]], ...] = (
    # Label of the axis, a factor, and the name of each tag's curve in the legend.
    ("accuracy (%)", 100, _ACCURACIES),
    ("learning rate", 1, {"train/lr": ""}),
    ("instances per batch", 1, {"train/global_batch_size": ""}),
    ("masked tokens (%)", 100, {"train/masked_share": ""}),
    ("gradient norm", 1, {"train/grad_norm": ""}),
    ("sequences/s", 1, {"perf/sequences_per_s": ""}),
    ("share of the time or peak (%)", 1, {"perf/data_wait_pct": "waiting for data", "perf/mfu_pct": "MFU"}),
)
_ABOVE: dict[str, Any] = {
    **{"loc": "lower center", "bbox_to_anchor": (0.5, 1)},
    **{"fontsize": 8, "frameon": False, "columnspacing": 1, "handlelength": 1.5},
}
"""A legend above its panel."""
Row = Mapping[str, Any]
Rows = Sequence[Row]
Fork = tuple[int, Rows]
"""The step at which a fork begins, and the later rows of the run that it comes from; 0 and none for another run."""
_RIGHT_TO_LEFT = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]\\S*(?: \\S+)*")
"""From the first letter of Hebrew, Arabic and their like to the end of a table's cell, which is two blanks."""
_PLANNED_POINTS = 200
"""Points of a phase at which its planned schedules are drawn."""


def draw_losses(run_dir: Path, reports: list[PhaseReport], path: Path) -> None:
    """Draw training and held-out masked-LM loss over steps, the unigram baseline and the phases into a PNG.

    The reference curves are drawn as well, if the package has them for the run's recipe and vocabulary. Of a fork, the
    steps of the run that it comes from are grey.
    """
    figure = Figure(figsize=(8, 4.5), dpi=120, layout="tight")
    axes = figure.subplots()
    config = read_config(run_dir)
    fork = _forked_from(config)
    _plot_losses(axes, read_metrics(run_dir), reports, reference_for(config, shards_of(run_dir, config)), fork)
    axes.set_xlim(left=fork[0] or None)
    axes.set_xlabel("step")
    atomic_write(path, png_of(figure))


def draw_page(run_dir: Path, reports: Sequence[PhaseReport]) -> bytes:
    """Return a PNG of loss, accuracies, schedules, gradient norm, throughput and waiting over steps.

    The schedules are also drawn as they are planned, to the end of the run. A fork is drawn from its first step on,
    next to the run that it comes from.

    Args:
        run_dir: Run folder.
        reports: One for each phase that was validated; may be empty.
    """
    config, rows = read_config(run_dir), read_metrics(run_dir)
    fork = _forked_from(config)
    plans = _planned(config, rows, first=fork[0])
    figure = Figure(figsize=(11, 13), dpi=110, layout="tight")
    grid = figure.subplots(4, 2, sharex=True)
    axes = list(grid.flat)
    _plot_losses(axes[0], rows, reports, reference_for(config, shards_of(run_dir, config)), fork)
    for pair, (label, factor, names) in zip(axes[1:], CURVES, strict=True):
        for tag in names:
            points = [(step, factor * value) for step, value in plans.get(tag, [])]
            if points:
                pair.plot(*zip(*points, strict=True), color="tab:gray", linestyle=":", linewidth=1, label="planned")
        _plot_tags(pair, rows, names, factor, parent=fork[1])
        pair.set_ylabel(label)
    for pair in grid[-1]:
        pair.set_xlabel("step")
    axes[0].set_xlim(left=fork[0] or None)  # of all panels
    return png_of(figure)


def draw_track(track: Track) -> bytes:
    """Return a PNG of a run beside the bands of its reference, with a panel for each series."""
    tags = list(track.series)
    figure = Figure(figsize=(11, 2.6 * -(-len(tags) // 2)), dpi=110, layout="tight")
    rows = read_metrics(track.run_dir)
    for axes, tag in zip(figure.subplots(-(-len(tags) // 2), 2, squeeze=False).flat, tags, strict=False):
        _plot_band(axes, track.reference, tag)
        _plot_tags(axes, rows, {tag: "run"}, 1)
        outside = [(point.step, point.value) for point in track.series[tag] if not point.is_inside]
        if outside:
            axes.plot(*zip(*outside, strict=True), "x", color="tab:red", label="outside")
            axes.legend(framealpha=0.6)
        axes.set_ylabel(tag)
        axes.set_xlabel("step")
    return png_of(figure)


def render_run_page(run_dir: Path, picture: bytes, tables: Sequence[tuple[str, str]]) -> str:
    """Return the page as HTML, pictures and all. It loads nothing, and follows the browser's light or dark scheme.

    Args:
        run_dir: Run folder.
        picture: PNG from ``draw_page``.
        tables: Titles and plain text to show between the curves and the configuration.
    """
    parts = [image("curves over steps", picture), section("Progress", read_overview(run_dir).text)]
    parts += [section(title, text) for title, text in tables]
    rows = read_metrics(run_dir)
    if probed_sets(rows):
        drawn = image("accuracy on minimal pairs over steps", draw_probes(rows))
        parts.append(section("Minimal pairs", render_probes(rows), drawn))
    parts += [folded(run_dir / name) for name in ("config.yaml", "command.txt", "environment.json")]
    return render_page(run_dir, parts)


def _plot_band(axes: Any, reference: Reference, tag: str) -> None:
    """Plot the band of a series, phase by phase, and the means in its middle."""
    label = f"{len(reference.seeds)} runs of ours"
    for points in filter(None, bands(reference, tag)):
        steps, centres = [point.step for point in points], [point.centre for point in points]
        edges = ([point.centre + sign * point.half for point in points] for sign in (-1, 1))
        axes.fill_between(steps, *edges, color="tab:green", alpha=0.2, linewidth=0)
        axes.plot(steps, centres, color="tab:green", linewidth=1, marker="." if len(steps) == 1 else None, label=label)
        label = ""


def _forked_from(config: RunConfig) -> Fork:
    """Return where a run forks from another one, without rows if these are gone."""
    if config.fork is None:
        return 0, []
    parent, step = split_fork(config.fork)
    with suppress(MegabertError, OSError):
        return step, [row for row in read_metrics(parent) if row["step"] >= step]
    return step, []


def _plot_losses(
    axes: Any, rows: Rows, reports: Sequence[PhaseReport], reference: Reference | None, fork: Fork
) -> None:
    """Plot the losses, the baseline of each phase that ``reports`` has, and the reference's held-out loss."""
    if reference is not None:
        _plot_band(axes, reference, "eval/mlm_loss")
    _plot_tags(axes, rows, {"train/mlm_loss": "training", "eval/mlm_loss": "held out"}, 1, parent=fork[1])
    for report in reports:
        begin, end = max(fork[0], report.begin), report.begin + report.steps
        label = "unigram" if report is reports[0] else ""
        axes.hlines(report.unigram.loss, begin, end, color="tab:gray", linestyle="--", label=label)
        if begin:
            axes.axvline(begin, color="black", linewidth=0.5)
        # A name is no formula, whatever dollars and underscores it has.
        name, place = printable(report.name)[-NAME_LENGTH:], ((begin + end) / 2, 1.01)
        axes.annotate(name, place, xycoords=("data", "axes fraction"), ha="center", parse_math=False)
    axes.set_ylabel("masked-LM loss (nats)")
    if axes.get_legend():
        axes.legend(loc="upper right")


def _planned(config: RunConfig, rows: Rows, *, first: int) -> dict[str, list[tuple[int, float]]]:
    """Return the planned points of each schedule by tag, after the step ``first`` that a fork began at.

    The masked share has points in phases that set it.
    """
    # A fork may have changed the length of an earlier phase: the last row knows where its own phase began.
    last = next((row for row in reversed(rows) if "phase_step" in row), None)
    shift = 0
    if last is not None:
        begin = sum(phase.num_steps for phase in config.phases[: last["phase"] - 1])
        shift = last["step"] - last["phase_step"] - begin
    planned = [step for phase in planned_steps(config, _PLANNED_POINTS) for step in phase]
    steps = [step._replace(step=step.step + shift) for step in planned if step.step + shift > first]
    return {
        "train/lr": [(step.step, step.rate) for step in steps],
        "train/global_batch_size": [(step.step, step.batch_size) for step in steps],
        "train/masked_share": [(step.step, step.masked_share) for step in steps if step.masked_share is not None],
    }


def _plot_tags(axes: Any, rows: Rows, names: Mapping[str, str], factor: float, *, parent: Rows = ()) -> None:
    """Plot each tag over its steps; the rows of a fork's parent are grey."""
    for tag, name in names.items():
        before, points = ([(row["step"], factor * row[tag]) for row in some if tag in row] for some in (parent, rows))
        if before:
            label = "forked run" if tag == next(iter(names)) else ""
            axes.plot(*zip(*before, strict=True), color="lightgray", linewidth=1, label=label)
        if not points:
            continue
        is_rare = tag.startswith("eval/")
        axes.plot(*zip(*points, strict=True), linewidth=1, marker="o" if is_rare else None, markersize=3, label=name)
    count = len(axes.get_legend_handles_labels()[1])  # curves without a name are in no legend
    if count > 2:  # no room for it among the curves
        axes.legend(**_ABOVE, ncols=count)
    elif count:
        axes.legend(framealpha=0.6)


_PREFIX = "probe/"


def probed_sets(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Return the tags of the groups of each probed set, in the order of the metrics."""
    tags = dict.fromkeys(tag for row in rows for tag in row if tag.startswith(_PREFIX))
    names = [tag.removeprefix(_PREFIX) for tag in tags if tag.count("/") == 1]
    return {name: [tag for tag in tags if tag.startswith(f"{_PREFIX}{name}/")] for name in names}


def draw_probes(rows: Sequence[Row]) -> bytes:
    """Return a PNG with a panel for each probed set: a thin line for each group, a thick one for all pairs."""
    sets = probed_sets(rows)
    figure = Figure(figsize=(11, 5 * len(sets)), dpi=110)
    for axes, (name, groups) in zip(figure.subplots(len(sets), 1, squeeze=False).flat, sets.items(), strict=True):
        for number, tag in enumerate([*groups, f"{_PREFIX}{name}"]):
            is_all = tag not in groups
            steps, values = zip(*_points(rows, tag), strict=True)
            look = {"color": "black", "linewidth": 2.5} if is_all else {"color": f"C{number % 10}", "linewidth": 1}
            label = "all" if is_all else printable(tag.rpartition("/")[2]).replace("_", " ").replace("$", "")
            style = "-" if number < 10 or is_all else "--"  # there are ten colours
            axes.plot(steps, values, linestyle=style, marker="o", markersize=3, label=label, **look)
        axes.axhline(50, color="tab:gray", linestyle=":")
        axes.set_ylim(0, 102)
        axes.set_ylabel(f"{printable(name)[-NAME_LENGTH:]}: accuracy on minimal pairs (%)", parse_math=False)
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=8)
        axes.set_xlabel("step")
    return png_of(figure, bbox_inches="tight")


def render_probes(rows: Sequence[Row]) -> str:
    """Return a table for each set: the first, the best and the last accuracy of each group; 50% is chance."""
    return "\n\n".join(_render_set(rows, name, groups) for name, groups in probed_sets(rows).items())


def _render_set(rows: Sequence[Row], name: str, groups: Sequence[str]) -> str:
    cells = []
    for tag in (*groups, f"{_PREFIX}{name}"):
        points = _points(rows, tag)
        best = max(points, key=lambda point: point[1])
        shown = (f"{value:.1f} ({step:,})" for step, value in (points[0], best, points[-1]))
        cells.append((tag.rpartition("/")[2] if tag in groups else "all", *shown))
    return render_table(cells, headers=(name, "first % (step)", "best % (step)", "last % (step)"), align="lrrr")


def _points(rows: Sequence[Row], tag: str) -> list[tuple[int, float]]:
    return [(int(row["step"]), 100 * row[tag]) for row in rows if tag in row]


def render_page(folder: Path, parts: Iterable[str]) -> str:
    """Return the page about a folder as HTML.

    Args:
        folder: The folder that the title names.
        parts: HTML from ``image``, ``section`` and ``folded``.
    """
    page = Template(resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8"))
    body = "\n".join(filter(None, parts))
    date = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    text = page.substitute(title=html.escape(folder.name), heading=html.escape(str(folder)), date=date, parts=body)
    return text.encode(errors="backslashreplace").decode()  # a path may hold bytes that are no UTF-8


def image(about: str, picture: bytes) -> str:
    """Return a PNG as a part of the page.

    Args:
        about: A description for readers who do not see it.
        picture: The PNG.
    """
    return f'<img alt="{about}" src="data:image/png;base64,{base64.b64encode(picture).decode("ascii")}">'


def section(title: str, text: str, picture: str = "") -> str:
    """Return a titled table or other plain text, with a picture from ``image`` above it."""
    text = _RIGHT_TO_LEFT.sub("\u2068\\g<0>\u2069", text)  # else neighbouring cells would change places
    return f"<h2>{html.escape(title)}</h2>\n{picture}<pre>{html.escape(text)}</pre>"


def folded(path: Path) -> str:
    """Return a file that a click unfolds; nothing if there is none."""
    if not path.is_file():
        return ""
    text = html.escape(read_small(path).decode(errors="replace"))
    return f"<details><summary>{html.escape(path.name)}</summary><pre>{text}</pre></details>"
