"""Who does the work: this process, worker processes of this machine, or the ranks of an MPI world.

An executor maps a function over independent tasks and yields results as they finish. Nothing that a task computes may
depend on the executor, its size or the order.
"""

import ctypes
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import islice
from multiprocessing import resource_tracker
from queue import SimpleQueue
from typing import Any, Self

from data_prep.execution.without_pandas import leave_out_pandas
from megabert.foundation.errors import HaltedError
from megabert.settings.command_line.signals import SIGNALS

PR_SET_PDEATHSIG = 1
WORTH_WORKERS = 8_000_000
"""Bytes of an input that one process reads in the time that workers take to start, about."""


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


def in_any_order(
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
            yield from in_any_order(submit, tasks, 2 * self.workers)
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


def local_executor(workers: int | None) -> Executor:
    """Return the executor of one machine; a single worker is this process itself.

    Args:
        workers: Processes; None for one per core, if the input is worth their start.
    """
    number, least_bytes = (len(os.sched_getaffinity(0)), WORTH_WORKERS) if workers is None else (workers, 0)
    return Executor() if number <= 1 else ProcessExecutor(number, least_bytes)


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
