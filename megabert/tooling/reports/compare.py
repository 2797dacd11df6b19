"""Two runs side by side, step by step: their first difference and the largest ones."""

import dataclasses
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any, NamedTuple

from megabert.foundation.errors import CheckpointError
from megabert.foundation.text_tables import render_table
from megabert.observability.metrics import read_metrics
from megabert.settings.config.loading import differences, to_dict
from megabert.settings.config.phase import PhaseConfig
from megabert.settings.config.run import is_science
from megabert.training.run.folder import read_config

COMPARED = ("train/", "eval/")
"""Prefixes of the tags that a run's data and arithmetic decide. Rates and memory depend on the machine instead."""
NOT_COMPARED = ("train/failed_checkpoints",)
"""Tags that tell of the machine, whatever their prefix."""
RATES = ("perf/sequences_per_s", "perf/tokens_per_s", "perf/mfu_pct")


class TagDifference(NamedTuple):
    """One tag over all steps that both runs logged it at."""

    tag: str
    steps: int
    """How many steps were compared."""
    first: tuple[int, float, float] | None
    """Step and both values of the first difference above the tolerance; None if there is none."""
    largest: tuple[int, float, float]
    """Step and both values of the largest difference."""


class Comparison(NamedTuple):
    """What two runs have in common and what not."""

    run_dirs: tuple[Path, Path]
    config: dict[str, tuple[Any, Any]]
    """Both values of each field that differs, by the field's path."""
    steps: tuple[int, int]
    """How many steps each run logged."""
    common_steps: int
    tags: tuple[TagDifference, ...]
    one_sided: dict[str, tuple[int, int]]
    """For each tag, at how many of the common steps only the first run logged it, and only the second."""
    rates: dict[str, tuple[float, float]]
    """Medians of both runs over the steps that both logged in the same phase, by tag."""

    @property
    def are_equal(self) -> bool:
        """Whether both logged the same tags at the same steps with the same values, within the tolerance."""
        same_steps = self.steps == (self.common_steps, self.common_steps)
        return same_steps and not self.one_sided and all(tag.first is None for tag in self.tags)

    @property
    def first(self) -> tuple[str, int, float, float] | None:
        """Tag, step and values of the earliest difference, the loss before other tags of that step."""
        differences = [(tag.tag, *tag.first) for tag in self.tags if tag.first is not None]
        return min(differences, key=lambda entry: (entry[1], entry[0] != "train/loss"), default=None)


def compare_runs(first: Path, second: Path, *, tolerance: float = 0.0) -> Comparison:
    """Compare two runs' metrics at the steps that both logged.

    Args:
        first: The first run's folder, A.
        second: The second run's folder, B.
        tolerance: Relative difference up to which values count as equal; 0 asks for the same bits.

    Raises:
        CheckpointError: A folder is no run folder, or has logged nothing.
    """
    config = differences(to_dict(read_config(first)), to_dict(read_config(second)))  # says which is no run folder
    # Runs may log at different steps or have been stopped: only steps and tags that both have are compared.
    tables = [_table(run_dir) for run_dir in (first, second)]
    steps = [{step for step, _ in table} for table in tables]
    tags = sorted({tag for _, tag in tables[0].keys() & tables[1].keys() if _is_compared(tag)})
    return Comparison(
        run_dirs=(first, second),
        config=config,
        steps=(len(steps[0]), len(steps[1])),
        common_steps=len(steps[0] & steps[1]),
        tags=tuple(_compare_tag(tag, tables[0], tables[1], tolerance) for tag in tags),
        one_sided=_one_sided(tables[0], tables[1], steps[0] & steps[1]),
        rates=_rates(*tables),
    )


def render_comparison(comparison: Comparison) -> str:
    """Return the comparison as text."""
    a_dir, b_dir = comparison.run_dirs
    lines = [f"A: {a_dir}, {comparison.steps[0]} logged steps", f"B: {b_dir}, {comparison.steps[1]} logged steps", ""]
    lines.append("configurations (* makes it another experiment):" if comparison.config else "configurations: equal")
    for path, values in comparison.config.items():
        lines.append(f"  {'*' if is_science(path) else ' '} {path}: {' and '.join(map(_shown, values))}")
    lines.append("")
    # The steps that both logged, and the earliest difference at them.
    lines.append(f"steps that both logged: {comparison.common_steps}")
    if comparison.first is None:
        lines.append("the values that both have are equal" if comparison.common_steps else "nothing can be compared")
    else:
        tag, step, value_a, value_b = comparison.first
        lines.append(f"first difference: step {step}, {tag}: {value_a:.9g} and {value_b:.9g}")
    lines += [
        f"{tag}: at {only_a} of these steps in A alone, at {only_b} in B alone"
        for tag, (only_a, only_b) in comparison.one_sided.items()
    ]
    # Tags that differ, as a table; then the others, as a list.
    differing = [
        (tag.tag, tag.first[0], step, f"{a:.6g}", f"{b:.6g}", f"{relative_difference(a, b):.1e}")
        for tag in comparison.tags
        for step, a, b in [tag.largest]
        if tag.first is not None
    ]
    if differing:
        headers = ("tag", "first at", "largest at", "A", "B", "relative")
        lines += ["", render_table(differing, headers=headers, align="lrrrrr")]
    equal = [tag.tag for tag in comparison.tags if tag.first is None]
    if differing and equal:
        lines += ["", f"equal at all steps: {', '.join(equal)}"]
    # Rates depend on the machine and make no difference.
    if comparison.rates:
        lines.append("")
    for tag, (rate_a, rate_b) in comparison.rates.items():
        lines.append(f"{tag}: {rate_a:,.1f} and {rate_b:,.1f} (median), B is {rate_b / rate_a:.2f} times A")
    return "\n".join(lines)


def relative_difference(a: float, b: float) -> float:
    """Return |a - b| over the greater of both; inf where one is not finite.

    Two NaNs differ as well: two runs that have diverged are no proof that a change is harmless.
    """
    if not (math.isfinite(a) and math.isfinite(b)):
        return math.inf
    return 0.0 if a == b else abs(a - b) / max(abs(a), abs(b))


def _is_compared(tag: str) -> bool:
    return tag.startswith(COMPARED) and tag not in NOT_COMPARED


Table = Mapping[tuple[int, str], float]


def _table(run_dir: Path) -> Table:
    """Return the numbers of a run by step and tag; a histogram's summary becomes three."""
    table: dict[tuple[int, str], float] = {}
    for row in read_metrics(run_dir):
        for tag, value in row.items():
            parts = value if isinstance(value, dict) else {"": value}
            for part, number in parts.items():
                if isinstance(number, int | float):
                    table[row["step"], f"{tag}.{part}" if part else tag] = float(number)
    if not table:
        raise CheckpointError(f"{run_dir / 'metrics.jsonl'}: no step has been logged yet. Compare again later.")
    return table


def _compare_tag(tag: str, a: Table, b: Table, tolerance: float) -> TagDifference:
    steps = sorted(step for step, name in a if name == tag and (step, tag) in b)
    values = [(step, a[step, tag], b[step, tag]) for step in steps]
    first = next((entry for entry in values if relative_difference(*entry[1:]) > tolerance), None)
    largest = max(values, key=lambda entry: relative_difference(*entry[1:]))
    return TagDifference(tag=tag, steps=len(steps), first=first, largest=largest)


def _one_sided(a: Table, b: Table, steps: Set[int]) -> dict[str, tuple[int, int]]:
    """Count, for each tag, at how many of the given steps only one of the runs has a value."""
    only_a, only_b = (
        Counter(tag for step, tag in keys if step in steps and _is_compared(tag))
        for keys in (a.keys() - b.keys(), b.keys() - a.keys())
    )
    return {tag: (only_a[tag], only_b[tag]) for tag in sorted(only_a | only_b)}


def _rates(a: Table, b: Table) -> dict[str, tuple[float, float]]:
    """Return both medians of each rate over the steps that both runs logged it at, in the same phase."""
    keys = [key for key in a.keys() & b.keys() if a.get((key[0], "phase")) == b.get((key[0], "phase"))]
    values = {tag: [[table[key] for key in keys if key[1] == tag] for table in (a, b)] for tag in RATES}
    return {tag: (statistics.median_high(a), statistics.median_high(b)) for tag, (a, b) in values.items() if a}


def _shown(value: Any) -> str:
    """Return a value of a configuration; of a phase that the other run lacks, the fields that differ from defaults."""
    if not isinstance(value, Mapping):
        return repr(value)
    defaults = {field.name: field.default for field in dataclasses.fields(PhaseConfig)}
    return f"({', '.join(f'{name} {own}' for name, own in value.items() if own != defaults.get(name))})"
