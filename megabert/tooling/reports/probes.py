"""Curves and a table of the minimal pairs that a run scored at its validations (`validation.probes`)."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from megabert.foundation.text_tables import render_table
from megabert.settings.command_line.terminal import printable

Row = Mapping[str, Any]
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
        axes.set_ylabel(f"{printable(name)}: accuracy on minimal pairs (%)", parse_math=False)
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=8)
        axes.set_xlabel("step")
    picture = io.BytesIO()
    figure.savefig(picture, format="png", bbox_inches="tight")
    return picture.getvalue()


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
