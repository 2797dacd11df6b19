"""Draws two pictures of the documentation from the functions that they explain.

python -m benchmarks.pictures                     docs/packing.svg and docs/schedule.svg
"""

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from megabert.data.packing import MicroShape, plan_packing
from megabert.foundation.files import atomic_write
from megabert.optim.schedules import planned_steps
from megabert.settings.config.loading import load_run_config

DOCS = Path(__file__).parents[1] / "docs"
LENGTH, INSTANCES, RANKS, MICRO_BATCH_TOKENS, SEED = 128, 24, 2, 512, 4
COLORS = ("#2f6690", "#81a4cd")
PADDING = "#e4e4e4"


def main() -> None:
    """Draw both."""
    draw("packing.svg", (8, 4.2), packing)
    draw("schedule.svg", (8, 3.4), schedule)


def draw(name: str, size: tuple[float, float], picture: Callable[[Figure], None]) -> None:
    """Draw a picture into docs/; the same functions give the same bytes."""
    figure, content = Figure(size, layout="constrained"), io.BytesIO()
    picture(figure)
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(content, format="svg", metadata={"Date": None})
    atomic_write(DOCS / name, content.getvalue())


def packing(figure: Figure) -> None:
    """Draw the same global batch with padding, and packed into the micro-batches of two ranks."""
    rng = np.random.default_rng(SEED)
    lengths = np.where(rng.random(INSTANCES) < 0.4, LENGTH, rng.integers(5, LENGTH, INSTANCES)).astype(np.uint16)
    shape = MicroShape(tokens=MICRO_BATCH_TOKENS, sequences=INSTANCES, masked=INSTANCES * LENGTH)
    plan = plan_packing(lengths, np.zeros_like(lengths), shape, RANKS)
    padded, packed = figure.subplots(2, 1, gridspec_kw={"height_ratios": [1, 1]})
    rows = [
        (f"rank {rank}, micro-step {step + 1}", [[int(lengths[i])] for i in ordinals])
        for rank in range(RANKS)
        for step, ordinals in enumerate(plan.micro_batches(rank))
    ]
    per_row = MICRO_BATCH_TOKENS // LENGTH
    columns = [lengths[i : i + per_row] for i in range(0, INSTANCES, per_row)]
    filled = [(f"micro-batch {i + 1}", [[int(n), LENGTH - int(n)] for n in row]) for i, row in enumerate(columns)]
    draw_rows(padded, filled, f"Padded to {LENGTH}: {lengths.mean() / LENGTH:.0%} real tokens")
    share = plan.num_tokens / (plan.max_tokens * len(rows))
    draw_rows(packed, rows, f"Packed: {share:.0%} real tokens, equal work for both ranks")
    for axes in (padded, packed):
        axes.set_xlim(0, MICRO_BATCH_TOKENS)
    packed.set_xlabel("tokens")


def draw_rows(axes: Axes, rows: list[tuple[str, list[list[int]]]], title: str) -> None:
    """Draw a bar per micro-batch; each instance is its number of tokens, and padding if it has a second number."""
    for y, (_, instances) in enumerate(rows):
        left = 0
        for index, (tokens, *padding) in enumerate(instances):
            axes.barh(y, tokens, left=left, color=COLORS[index % 2], edgecolor="white", linewidth=0.7)
            left += tokens
            for empty in padding:
                axes.barh(y, empty, left=left, color=PADDING)
                left += empty
    axes.set_yticks(range(len(rows)), [name for name, _ in rows])
    axes.invert_yaxis()
    axes.set_title(title, loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)


def schedule(figure: Figure) -> None:
    """Draw learning rate and batch size of the recipe ``bert_large``."""
    config = load_run_config("bert_large", flags={"data": {"path": "data"}})
    rate, batch = figure.subplots(2, 1, sharex=True)
    for phase, steps, color in zip(config.phases, planned_steps(config, 400), COLORS, strict=True):
        numbers = [step.step for step in steps]
        rate.plot(numbers, [step.rate for step in steps], color=color, label=f"length {phase.max_seq_length}")
        batch.plot(numbers, [step.batch_size for step in steps], color=color)
    rate.set_ylabel("learning rate")
    batch.set_ylabel("instances per step")
    batch.set_xlabel("step")
    batch.set_ylim(0)
    batch.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    rate.legend(frameon=False)
    for axes in (rate, batch):
        axes.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    main()
