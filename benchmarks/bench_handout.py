"""How well rank 0 keeps other ranks at work: units that sleep, so that two cores stand for a hundred.

    mpirun -n 32 python benchmarks/bench_handout.py [--unit-s 0.16] [--units-a-rank 60]

Rank 0 hands the units out through the executor of a build, and records and counts each as a build does. Messages are as
long as a build's. The other ranks import nothing but the executor, so that a hundred of them fit on a small machine.
Printed is the time that units took, as each measured it, of the time that the ranks had: of those that do units, and of
all, rank 0 among them. A sleep that ends late on a busy machine is time that its unit took.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from data_prep.execution.executors import Executor  # noqa: E402
from data_prep.execution.mpi import executor_of_all_ranks  # noqa: E402

COUNTS = {"rows": 50_000, "tokens": 6_000_000, "length_histogram": [3000] * 16}
LINE = b'{"name": "train-00000-00", "files": {%s}, "counts": {}}\n' % (b" " * 500)
TASK_BYTES = 1200


class Unit(NamedTuple):
    """A unit that sleeps."""

    seconds: float
    padding: bytes = b" " * TASK_BYTES
    """Makes the message as long as that of a build's unit."""


def sleep(unit: Unit) -> tuple[float, bytes, dict[str, Any]]:
    """Take the time that a unit takes; return how long it was, a record and counts."""
    start = time.perf_counter()
    time.sleep(unit.seconds)
    return time.perf_counter() - start, LINE, COUNTS


def run(executor: Executor, unit_s: float, units: int) -> tuple[float, float, float]:
    """Return the seconds that the units take all together, those of each added up, and the CPU seconds of rank 0."""
    from data_prep.execution.progress import INSTANCES, UnitProgress
    from data_prep.execution.records import StepRecords, Tally
    from data_prep.execution.work_units import LazyList

    tally, busy = Tally(), 0.0
    with tempfile.TemporaryDirectory() as folder:
        for _ in executor.run(sleep, LazyList(4 * executor.workers, lambda _: Unit(0.05))):
            pass  # every rank is there
        start, cpu = time.monotonic(), time.process_time()
        with (
            UnitProgress("units that sleep", units, INSTANCES, executor.workers) as progress,
            StepRecords(Path(folder), "sleep") as records,
        ):
            for _, (seconds, line, counts) in executor.run(sleep, LazyList(units, lambda _: Unit(unit_s))):
                busy += seconds
                records.append(line)
                tally.add(counts)
                progress.advance(counts)
        return time.monotonic() - start, busy, time.process_time() - cpu


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
            seconds, busy, cpu = run(executor, options.unit_s, units)
            print(
                f"{ranks} ranks, {units} units of {options.unit_s} s in {seconds:.2f} s ({units / seconds:.0f}/s), "
                f"a unit took {busy / units:.4f} s, rank 0 {1e6 * cpu / units:.0f} CPU us a unit; efficiency "
                f"{busy / seconds / workers:.3f} of {workers} that do units, {busy / seconds / ranks:.3f} of all"
            )


if __name__ == "__main__":
    main()
