"""A run's schedules as bars of characters, for ``pretrain --dry-run``."""

from collections.abc import Sequence

from megabert.optim.schedules import PlannedStep, planned_steps
from megabert.settings.config.run import RunConfig

WIDTH, HEIGHT = 60, 5
"""Columns for all phases together, and rows, of each plot."""
_FEWEST_COLUMNS = 6
"""Columns of a phase that is short beside the others."""


def draw_schedules(config: RunConfig, masked_shares: Sequence[float]) -> list[str]:
    """Draw learning rate, batch and masked share over the steps, phase by phase; one that never changes is left out.

    Args:
        config: The run, with every phase in steps.
        masked_shares: Share of predicted tokens of each phase's shards, for phases that do not set their own.
    """
    total = sum(phase.num_steps for phase in config.phases)
    widths = [max(_FEWEST_COLUMNS, round(WIDTH * phase.num_steps / total)) for phase in config.phases]
    plans = [_stretch(steps, width) for steps, width in zip(planned_steps(config, WIDTH), widths, strict=True)]
    rates = [[step.rate for step in steps] for steps in plans]
    batches = [[float(step.batch_size) for step in steps] for steps in plans]
    masked = [
        [100 * (share if step.masked_share is None else step.masked_share) for step in steps]
        for steps, share in zip(plans, masked_shares, strict=True)
    ]
    lines = [f"schedules over steps 1 to {total:,}, phase by phase:"]
    for title, phases in (("learning rate", rates), ("instances per batch", batches), ("masked tokens, %", masked)):
        lines += _draw(title, phases)
    return lines


def _stretch(steps: list[PlannedStep], width: int) -> list[PlannedStep]:
    """Return one step for each of ``width`` columns, the first and the last included."""
    return [steps[round(column * (len(steps) - 1) / max(1, width - 1))] for column in range(width)]


def _draw(title: str, phases: list[list[float]]) -> list[str]:
    """Draw one schedule from 0 to its highest value: a column is filled to the row that its value reaches."""
    values = [value for phase in phases for value in phase]
    low, high = min(values), max(values)
    if low == high:
        return [f"  {title}: {_shown(high)} throughout"]
    lines = [f"  {title}, {_shown(low)} to {_shown(high)}"]
    for row in range(HEIGHT, 0, -1):
        columns = ("".join("#" if round(HEIGHT * value / high) >= row else " " for value in phase) for phase in phases)
        lines.append(f"    |{'|'.join(columns)}|")
    return lines


def _shown(value: float) -> str:
    """Write whole numbers, such as instances, out."""
    return f"{value:,.0f}" if value == int(value) else f"{value:.3g}"
