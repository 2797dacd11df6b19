"""How scores are shown: in points. Files hold fractions, people read points, 100 times that.

The exception is the threshold of "no answer", a difference of logits, which is shown as it is.
"""

from collections.abc import Mapping

from megabert.text_tables import render_table

THRESHOLD = "null_threshold"
"""The one number among the metrics that is no score."""
UNIT = "scores in points (100 = perfect)"
"""Heading of a table of scores."""


def in_points(name: str, value: float) -> str:
    """Return a metric's value as it is shown."""
    return f"{value:.4f}" if name == THRESHOLD else f"{100 * value:.2f}"


def with_spread(name: str, mean: float, deviation: float | None) -> str:
    """Return a mean over seeds with its deviation; without one for a single seed."""
    return in_points(name, mean) + ("" if deviation is None else f" +- {in_points(name, deviation)}")


def render_scores(metrics: Mapping[str, float], baseline: Mapping[str, float]) -> str:
    """Return a set's scores as a table, each beside the baseline."""
    rows = [
        (name, in_points(name, value), in_points(name, baseline[name]) if name in baseline else "-")
        for name, value in metrics.items()
    ]
    return render_table(rows, headers=("metric", "score", "constant answer"), align="lrr")
