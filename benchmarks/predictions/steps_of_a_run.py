"""The steps of a run next to their prediction from rates that were measured before it.

    python -m benchmarks.predictions.steps_of_a_run RUN proof.json

The rates come from ``megabert doctor --prove --save proof.json``.
"""

import argparse
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from megabert.checkpoints.format import read_checkpoint_manifest
from megabert.checkpoints.loading import find_checkpoint
from megabert.foundation.errors import CheckpointError, ConfigError
from megabert.foundation.text_tables import render_table
from megabert.observability.metrics import read_metrics
from megabert.settings.config.run import RunConfig
from megabert.tooling.measurements.measured import MeasuredRates, read_measured
from megabert.tooling.planning.estimate import estimate
from megabert.tooling.planning.step_time import StepTime, measured_cluster
from megabert.training.run.folder import checkpoints_dir, read_config, with_found_data

HEADERS = ("phase", "part of a step", "predicted, ms", "measured, ms", "measured / predicted")


def main() -> None:
    """Print the table of a run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_dir", type=Path, metavar="RUN")
    parser.add_argument("measured", type=Path, metavar="FILE")
    options = parser.parse_args()
    print(describe_steps(options.run_dir, options.measured))


def describe_steps(run_dir: Path, measured: Path) -> str:
    """Return the table of a run folder's steps next to their prediction from a file of rates."""
    ranks = read_checkpoint_manifest(find_checkpoint(checkpoints_dir(run_dir))).world_size
    config = with_found_data(run_dir, read_config(run_dir))
    return render_steps(config, read_measured(measured), read_metrics(run_dir), ranks=ranks)


def render_steps(config: RunConfig, measured: MeasuredRates, rows: Sequence[Mapping[str, Any]], *, ranks: int) -> str:
    """Return a table of predicted and measured parts of a step, phase by phase.

    Args:
        config: The run's resolved configuration.
        measured: Rates of the machines that it ran on.
        rows: Its metrics.
        ranks: Its number of ranks, on as few nodes as the measured ones allow, each with equally many.

    Raises:
        CheckpointError: The run has logged no step after a phase's first one.
        ConfigError: These rates are of another model or of other ranks.
    """
    nodes = -(-ranks // measured.ranks_per_node)
    if ranks % nodes:
        raise ConfigError(
            f"--measured: the run has {ranks} ranks, which {nodes} nodes of {measured.ranks_per_node} ranks, as they "
            "were measured, cannot share equally. Measure on the run's own nodes: megabert doctor --prove --save."
        )
    cluster = measured_cluster(measured, nodes=nodes, gpus_per_node=ranks // nodes)
    table: list[tuple[str, ...]] = []
    for index, phase in enumerate(estimate(config, cluster, measured=measured).phases):
        # The first row of a phase has loops and kernels that were compiled, and files that were opened.
        own = [row for row in rows if row.get("phase") == index + 1 and "perf/step_s" in row][1:]
        predicted = parts_of(phase.step)
        for part, found_s in measured_parts(own).items() if own else ():
            ratio = f"{found_s / predicted[part]:.2f}" if predicted[part] else "-"
            table.append((phase.name, part, f"{1000 * predicted[part]:,.1f}", f"{1000 * found_s:,.1f}", ratio))
    if not table:
        raise CheckpointError("metrics.jsonl: no step after a phase's first one was logged yet. Ask again later.")
    return render_table(table, headers=HEADERS, align="llrrr")


def parts_of(step: StepTime) -> dict[str, float]:
    """Return the seconds of the parts that a run measures, as they were predicted."""
    update_s = step.communication_s - step.hidden_s + step.passes_s + step.optimizer_s
    return {
        "computation": step.compute_s,
        "update": update_s,
        "waiting for data": max(0.0, step.loader_s - step.compute_s - update_s),
        "whole step": step.total_s,
    }


def measured_parts(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the median seconds of the same parts in some rows of metrics."""
    whole_s, compute_s, waited_pct = (
        statistics.median(row[f"perf/{name}"] for row in rows) for name in ("step_s", "compute_s", "data_wait_pct")
    )
    waited_s = whole_s * waited_pct / 100
    update_s = max(0.0, whole_s - compute_s - waited_s)
    return {"computation": compute_s, "update": update_s, "waiting for data": waited_s, "whole step": whole_s}


if __name__ == "__main__":
    main()
