"""Checkpoints written in the background: training pauses while its tensors are copied, not while they are written.

The copy goes to a buffer in host memory that is allocated once. A thread then does what `saving` does, with collectives
on a process group of its own: the threads of all ranks agree on whether the checkpoint was written, while their main
threads train on. Two threads that shared a group would mix up each other's collectives and hang.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from megabert.checkpoints.saving import Snapshot, snapshot_of, write_snapshot
from megabert.distributed.process_group import World
from megabert.engine.engine import Engine
from megabert.errors import CheckpointError, MegabertError, cause_of

logger = logging.getLogger(__name__)


@dataclass
class WriterCounts:
    """What checkpoints have cost since the start of this process."""

    stall_s: float = 0.0
    """Seconds that training paused: for copies, and for an earlier checkpoint that was still being written."""
    waits: int = 0
    """Saves that had to wait for the previous checkpoint."""
    failures: int = 0
    """Checkpoints that could not be written."""


class CheckpointWriter:
    """Writes a run's checkpoints, one at a time. All public methods are called by the main thread."""

    def __init__(
        self, checkpoints_dir: Path, engine: Engine, world: World, *, written: Callable[[dict[str, Any]], None]
    ) -> None:
        """Create a writer; its buffer is allocated by the first ``save``.

        Args:
            checkpoints_dir: Folder of the run's checkpoints, on a file system that all ranks share.
            engine: The engine whose masters and moments are written.
            world: All ranks.
            written: Called with the trainer's state after each complete checkpoint, on every rank, by the thread.
        """
        self.counts = WriterCounts()
        self._folder, self._engine = checkpoints_dir, engine
        self._world, self._writing_world = world, world.in_background()
        self._written = written
        self._buffer: Tensor | None = None
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None

    def save(self, step: int, trainer_state: dict[str, Any]) -> None:
        """Copy masters and moments and let the thread write them; every rank calls it, between steps.

        If the previous checkpoint is still being written, this waits for it first: there is one buffer.
        """
        self.make_way()
        started = time.monotonic()
        snapshot = self._copied(snapshot_of(self._engine, step, trainer_state, self._world))
        self._thread = threading.Thread(target=self._write, args=(snapshot,), name="megabert-checkpoint", daemon=True)
        self._failure = None
        stall_s = time.monotonic() - started
        self.counts.stall_s += stall_s
        logger.debug("checkpoint of step %d: training paused for %.3f s", step, stall_s)
        self._thread.start()

    def make_way(self) -> MegabertError | None:
        """Wait for the previous checkpoint, count the wait, and return why it was not written, or None."""
        started = time.monotonic()
        if self._thread is not None and self._thread.is_alive():
            self.counts.waits += 1
            if self._world.is_main:
                logger.warning(
                    "training waits for the previous checkpoint to be written (%d so far): write less often "
                    "(checkpoint.every_steps), or to a faster disk",
                    self.counts.waits,
                )
        failure = self.wait()
        self.counts.stall_s += time.monotonic() - started
        return failure

    def wait(self) -> MegabertError | None:
        """Wait until nothing is being written; return why the last checkpoint failed, the same on every rank, or None.

        Raises:
            Exception: Anything else that ended the thread, such as the death of another rank.
        """
        if self._thread is not None:
            self._thread.join()
        if self._failure is not None and not _is_unwritten(self._failure):
            raise self._failure
        return self._failure  # type: ignore[return-value]

    def close(self, timeout_s: float) -> None:
        """Give the checkpoint that is being written some time to complete; called when an error ends the run."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _copied(self, snapshot: Snapshot) -> Snapshot:
        """Return a snapshot whose tensors are copies in this writer's buffer, which training does not touch."""
        on_gpu = self._world.device.type == "cuda"
        if self._buffer is None:  # page-locked, so that a GPU copies into it at full speed and without waiting
            numel = sum(tensor.numel() for _, tensor in snapshot.tensors)
            self._buffer = torch.empty(numel, dtype=torch.float32, pin_memory=on_gpu)
        # A GPU queues the copies; one synchronisation at the end waits for all of them.
        copies, position = [], 0
        for key, tensor in snapshot.tensors:
            copy = self._buffer[position : position + tensor.numel()]
            copies.append((key, copy.copy_(tensor.detach(), non_blocking=True)))
            position += tensor.numel()
        if on_gpu:
            torch.cuda.synchronize(self._world.device)
        return replace(snapshot, tensors=copies)

    def _write(self, snapshot: Snapshot) -> None:
        started = time.monotonic()
        try:
            write_snapshot(self._folder, snapshot, self._writing_world)
            self._written(snapshot.manifest.trainer_state)
            logger.debug("checkpoint of step %d: written in %.3f s", snapshot.manifest.step, time.monotonic() - started)
        except Exception as error:  # the main thread gets it from ``wait``
            self._failure = error
            self.counts.failures += 1
            if _is_unwritten(error) and self._world.is_main:
                logger.warning("CHECKPOINT NOT WRITTEN, the last good one stays: %s", error)


def _is_unwritten(error: Exception) -> bool:
    """Whether an error means that a checkpoint was not written, on this rank or on another; all ranks agree on it."""
    return isinstance(cause_of(error), CheckpointError)
