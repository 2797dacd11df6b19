"""How well rank 0 keeps other ranks at work: units that sleep, so that two cores stand for a hundred.

    mpirun -n 32 python benchmarks/bench_handout.py [--unit-s 0.16] [--units-a-rank 60]

Rank 0 hands the units out through the executor of a build, and records each as a build does. Printed is the time that
units took of the time that the ranks had: of those that do units, and of all, rank 0 among them.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from data_prep.config import BuildConfig, SourceConfig  # noqa: E402
from data_prep.execution.build_state import installed_versions  # noqa: E402
from data_prep.execution.executors import Executor, executor_of_all_ranks  # noqa: E402
from data_prep.execution.progress import INSTANCES  # noqa: E402
from data_prep.execution.work_units import Build, LazyList, Unit  # noqa: E402

COUNTS = {"rows": 50_000, "tokens": 6_000_000, "length_histogram": [3000] * 16}


def sleep(seconds: float) -> tuple[list[Path], dict[str, Any]]:
    """Take the time that a unit takes."""
    time.sleep(seconds)
    return [], COUNTS


def run(executor: Executor, unit_s: float, units: int) -> float:
    """Return the seconds that the units take all together."""
    config = BuildConfig(sources=(SourceConfig(input="none"),))
    with tempfile.TemporaryDirectory() as folder:
        build = Build(Path(folder), config, executor, installed_versions())

        def unit(number: int) -> Unit:
            return build.unit("sleep", f"{number:06d}", sleep, unit_s)

        build.run("start", LazyList(4 * executor.workers, lambda n: build.unit("start", f"{n}", sleep, 0.05)))
        start = time.monotonic()
        build.run("units that sleep", LazyList(units, unit), INSTANCES)
        return time.monotonic() - start


def main() -> None:
    """Measure and print, on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--unit-s", type=float, default=0.16)
    parser.add_argument("--units-a-rank", type=int, default=60)
    options = parser.parse_args()
    with executor_of_all_ranks(1, is_mpi=True) as executor:
        if executor is not None:
            from mpi4py import MPI

            ranks, workers = MPI.COMM_WORLD.size, executor.workers
            units = options.units_a_rank * workers
            seconds = run(executor, options.unit_s, units)
            used = units * options.unit_s / seconds
            print(
                f"{ranks} ranks, {units} units of {options.unit_s} s in {seconds:.2f} s ({units / seconds:.0f}/s), "
                f"efficiency {used / workers:.3f} of {workers} that do units, {used / ranks:.3f} of all"
            )


if __name__ == "__main__":
    main()
