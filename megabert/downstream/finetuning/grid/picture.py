"""A picture of a grid: a panel per set, the score over the learning rate, a line per number of epochs."""

import io

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from megabert.downstream.finetuning.grid.results import GridResult, SetResult
from megabert.settings.command_line.terminal import printable

COLUMNS = 3
"""Panels side by side, at most."""


def draw_grid(result: GridResult) -> bytes:
    """Return a PNG of all settings' scores: mean and deviation over seeds, the baseline, and the choice in a ring."""
    columns = min(COLUMNS, len(result.sets))
    rows = -(-len(result.sets) // columns)
    figure = Figure(figsize=(4.2 * columns, 3.4 * rows), dpi=110)
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes, (name, one) in zip(panels, result.sets.items(), strict=False):
        _plot_set(axes, one)
        axes.set_title(printable(name).replace("$", r"\$"))
    for axes in panels[len(result.sets) :]:
        axes.set_visible(False)
    figure.tight_layout()
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    return picture.getvalue()


def _plot_set(axes: Axes, result: SetResult) -> None:
    for epochs in sorted({one.epochs for one in result.settings}):
        own = sorted(
            (one.learning_rate, 100 * one.summary.score, 100 * one.summary.score_deviation)
            for one in result.settings
            if one.epochs == epochs and one.summary
        )
        if own:
            rates, scores, deviations = zip(*own, strict=True)
            axes.errorbar(rates, scores, yerr=deviations, marker="o", capsize=3, label=f"{epochs:g} epochs")
    chosen, summary = result.chosen, result.summary
    if chosen and summary:
        place = (chosen.learning_rate, 100 * summary.score)
        axes.plot(*place, "ok", markersize=13, fillstyle="none", label="chosen")
        axes.axhline(100 * result.baseline, color="tab:gray", linestyle=":", label="constant answer")
    ticks = sorted({one.learning_rate for one in result.settings})
    axes.set_xscale("log")
    axes.set_xticks(ticks, [f"{rate:g}" for rate in ticks])
    axes.minorticks_off()
    axes.set_xlabel("learning rate")
    axes.set_ylabel("score (points)")
    if axes.has_data():
        axes.legend(framealpha=0.6, fontsize=8)
