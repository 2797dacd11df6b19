"""A world that stays up and runs functions on all its ranks, which are forks of a process that has imported torch."""

import gc
import multiprocessing
import os
import time
import traceback
from multiprocessing.connection import Connection

from support.processes import free_port

CONTEXT = multiprocessing.get_context("forkserver")
USED_BY_RANKS = ("deepspeed", "deepspeed.module_inject.auto_ep_layer", "megabert.foundation.compiled", "torch._dynamo")
CONTEXT.set_forkserver_preload(["pytest", *USED_BY_RANKS, "megabert.engine.engine", "megabert.training.pretrain"])


class WorkerError(AssertionError):
    """A function raised on a rank, or a rank did not answer in time."""


class WorkerGroup:
    """``size`` processes in one process group; ``run(function, ...)`` calls ``function(world, ...)`` on each."""

    def __init__(self, size: int) -> None:
        port = free_port()
        self.size = size
        self.processes = []
        self.pipes: list[Connection] = []
        for rank in range(size):
            ours, theirs = CONTEXT.Pipe()
            process = CONTEXT.Process(target=_serve, args=(rank, size, port, theirs), daemon=True)
            process.start()
            theirs.close()
            self.processes.append(process)
            self.pipes.append(ours)

    def run(self, function, *args, timeout_s: float = 120.0, **options) -> list:
        """Return what ``function`` returned on each rank; it must be a module-level function."""
        for pipe in self.pipes:
            pipe.send((function, args, options))
        return self.collect(timeout_s)

    def collect(self, timeout_s: float) -> list:
        """Wait for every rank's answer; kill the group if one is missing."""
        deadline = time.monotonic() + timeout_s
        results, errors = [], []
        for rank, pipe in enumerate(self.pipes):
            try:
                if not pipe.poll(max(0.1, deadline - time.monotonic())):
                    raise EOFError("no answer in time")
                result, error = pipe.recv()
            except (EOFError, ConnectionError) as failure:
                self.close()
                raise WorkerError(f"rank {rank} of {self.size}: {failure!r}; errors so far: {errors}") from None
            results.append(result)
            if error:
                errors.append(f"rank {rank}:\n{error}")
        if errors:
            raise WorkerError("\n".join(errors))
        return results

    @property
    def is_alive(self) -> bool:
        return bool(self.processes) and all(process.is_alive() for process in self.processes)

    def hang_up(self) -> None:
        """Ask the ranks to leave together, without waiting."""
        for pipe in self.pipes:
            pipe.close()  # the worker reads an end of file and leaves
        self.pipes = []

    def close(self) -> None:
        """Ask the ranks to leave together; kill those that do not."""
        self.hang_up()
        deadline = time.monotonic() + 20
        for process in self.processes:
            process.join(max(0.1, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join(5)
        self.processes = []


class WorkerGroups:
    """At most one group a world size, started on demand."""

    def __init__(self) -> None:
        self.groups: dict[int, WorkerGroup] = {}

    def __call__(self, size: int) -> WorkerGroup:
        if size not in self.groups or not self.groups[size].is_alive:
            self.close(size)
            self.groups[size] = WorkerGroup(size)
        return self.groups[size]

    def close(self, size: int | None = None) -> None:
        doomed = [self.groups.pop(key) for key in ([size] if size else list(self.groups)) if key in self.groups]
        for group in doomed:
            group.hang_up()
        for group in doomed:
            group.close()


def _serve(rank: int, size: int, port: int, pipe: Connection) -> None:
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    import torch

    torch.set_num_threads(1)
    from megabert.distributed.process_group import distributed_world

    with distributed_world("cpu") as world:
        gc.freeze()  # each engine collects garbage
        while True:
            try:
                function, args, options = pipe.recv()
            except (EOFError, ConnectionError):
                return
            try:
                pipe.send((function(world, *args, **options), None))
            except BaseException:
                pipe.send((None, traceback.format_exc()))
