"""Who does the work: this process, or worker processes of this machine. MPI ranks take the same interface.

An executor maps a function over independent tasks and yields results as they finish; nothing that a task
computes may depend on the executor, its size or the order.
"""

import ctypes
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Protocol

from megabert.errors import DataError

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


def make_executor(workers: int) -> Executor:
    """Return the executor for a number of workers; 1 is this process."""
    return SerialExecutor() if workers <= 1 else ProcessExecutor(workers)


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
