"""A run's checkpoints, written in the background: training pauses while tensors are copied, not while they are written.

The copy goes to a buffer in host memory that is allocated once. A thread then does what `checkpoints.saving` does, with
collectives on a process group of its own: the threads of all ranks agree on whether the checkpoint was written, while
their main threads train on. Two threads that shared a group would mix up each other's collectives and hang.
"""

import threading
import time
from collections import deque
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from megabert.checkpoints.format import steps_in
from megabert.checkpoints.saving import Snapshot, prune, snapshot_of, write_snapshot
from megabert.distributed.process_group import World
from megabert.engine.engine import Engine
from megabert.foundation.errors import CheckpointError, MegabertError, cause_of
from megabert.observability.logs import logger
from megabert.settings.config.run import RunConfig
from megabert.training.recovery.watchdog import Watchdog
from megabert.training.run.folder import checkpoints_dir
from megabert.training.run.status import RunStatus
from megabert.training.state import TrainerState

_CLOSE_S = 120.0
"""How long a run that fails waits for a write that has begun."""


class CheckpointWriter:
    """Writes a run's states, one at a time; the main threads of all ranks call every method but ``close`` alike.

    While training continues, a checkpoint that cannot be written (a full disk) is a warning: the last good one stays,
    and the next one is tried when it is due. Where the run is to end, ``settle`` makes it an error.
    """

    def __init__(
        self,
        config: RunConfig,
        *,
        engine: Engine,
        world: World,
        run_dir: Path,
        status: RunStatus,
        watchdog: Watchdog,
        state: TrainerState,
    ) -> None:
        """Bind the parts; nothing is written yet, and the buffer is allocated by the first ``save``.

        Args:
            config: Says which checkpoints are kept.
            engine: The engine whose masters and moments are written.
            world: All ranks.
            run_dir: Run folder, on a file system that all ranks share.
            status: Notified of each complete checkpoint, from the thread.
            watchdog: Notified of everything that may take long.
            state: State at the beginning of this start; its best checkpoint is on the disk.
        """
        # What checkpoints have cost since the start of this process: seconds that training paused for copies and for an
        # earlier write, saves that had to wait for that, and checkpoints that could not be written.
        self.stall_s, self.waits, self.failures = 0.0, 0, 0
        self._config, self._engine, self._folder = config, engine, checkpoints_dir(run_dir)
        self._world, self._writing_world = world, world.in_background()
        self._status, self._watchdog = status, watchdog
        self._begun: TrainerState | None = None
        self._written = state
        self._buffer: Tensor | None = None
        self.completed: deque[int] = deque()
        """Steps of checkpoints that are whole since the caller last took them out."""
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None

    def save(self, state: TrainerState) -> TrainerState:
        """Copy masters and moments and let the thread write them; training may continue when this returns.

        If the previous checkpoint is still being written, this waits for it first: there is one buffer.

        Returns:
            The state that is written: if the best checkpoint could not be, it names the best one that could.
        """
        started = time.monotonic()
        if self._thread is not None and self._thread.is_alive():
            self.waits += 1
            if self._world.is_main:
                logger.warning(
                    "training waits for the previous checkpoint to be written (%d so far): write less often "
                    "(checkpoint.every_steps), or to a faster disk",
                    self.waits,
                )
        failure = self.wait("copying a checkpoint, or waiting for the previous one")
        # If the previous write failed and it was the best checkpoint so far, the state must not name it as the best.
        # Unless it is this very step that is written again.
        if failure is not None and self._begun is not None and state.best_step == self._begun.step != state.step:
            state = replace(state, best_step=self._written.best_step, best_loss=self._written.best_loss)
        snapshot = self._copied(snapshot_of(self._engine, state.step, state.to_dict(), self._world))
        self._begun, self._failure = state, None
        stall_s = time.monotonic() - started
        self.stall_s += stall_s
        logger.debug("checkpoint of step %d: training paused for %.3f s", state.step, stall_s)
        thread = threading.Thread(target=self._write, args=(snapshot, state), name="megabert-checkpoint", daemon=True)
        thread.start()
        self._thread = thread  # only now: ``close``, from another thread, cannot join one that has not begun
        return state

    def wait(self, doing: str = "writing a checkpoint") -> MegabertError | None:
        """Wait until nothing is being written; return why the last checkpoint failed, the same on every rank, or None.

        Raises:
            Exception: Anything else that ended the thread, such as the death of another rank.
        """
        self._watchdog.expect(doing)
        if self._thread is not None:
            self._thread.join()
        if self._failure is not None and not _is_unwritten(self._failure):
            raise self._failure
        return self._failure  # type: ignore[return-value]

    def settle(self, state: TrainerState) -> TrainerState:
        """Make sure that a state is on the disk, and return it as ``save`` does.

        Raises:
            CheckpointError: On every rank alike: it could not be written.
        """
        if self.wait() is not None or self._begun != state:
            state = self.save(state)
        error = self.wait()
        if error is not None:
            raise error
        return state

    def close(self) -> None:
        """On the way out: wait a while for a write that has begun. Only after an error there may be one.

        If another rank has failed, the thread of `FirstFailure.watching` calls this while the main thread is stuck.
        """
        self._watchdog.expect("writing a checkpoint")
        if self._thread is not None:
            self._thread.join(_CLOSE_S)

    def _copied(self, snapshot: Snapshot) -> Snapshot:
        """Return a snapshot whose tensors are copies in this writer's buffer, which training does not touch."""
        on_gpu = self._world.device.type == "cuda"
        sizes = [tensor.numel() for _, tensor in snapshot.tensors]
        if self._buffer is None:  # page-locked, so that a GPU copies into it at full speed and without waiting
            self._buffer = torch.empty(sum(sizes), dtype=torch.float32, pin_memory=on_gpu)
        # A GPU queues the copies; one synchronisation at the end waits for all of them.
        parts = zip(snapshot.tensors, self._buffer.split(sizes), strict=True)
        copies = [(key, part.copy_(tensor.detach(), non_blocking=True)) for (key, tensor), part in parts]
        if on_gpu:
            torch.cuda.synchronize(self._world.device)
        return replace(snapshot, tensors=copies)

    def _write(self, snapshot: Snapshot, state: TrainerState) -> None:
        """Write a checkpoint, in the thread, then record that it is complete and delete old ones."""
        started = time.monotonic()
        try:
            write_snapshot(self._folder, snapshot, self._writing_world)
            self._written = state
            self.completed.append(state.step)
            self._status.running(step=state.step, phase=state.phase)
            if self._world.is_main:
                self._prune(state)
            self._writing_world.gather(None)  # or the other ranks' next step would wait for rank 0, which still deletes
            logger.debug("checkpoint of step %d: written in %.3f s", state.step, time.monotonic() - started)
        except Exception as error:  # the main thread gets it from ``wait``
            self._failure = error
            self.failures += 1
            if _is_unwritten(error) and self._world.is_main:
                earlier = "the last good one stays" if steps_in(self._folder) else "and there is no earlier one"
                logger.warning("CHECKPOINT NOT WRITTEN, %s: %s", earlier, error)

    def _prune(self, state: TrainerState) -> None:
        """Delete old checkpoints, except the ones that the configuration or a later start may ask for."""
        rule = self._config.checkpoint
        protected = state.ends_of_phases(self._config)  # a fork can begin the next phase again from there
        if state.best_step is not None:
            protected.add(state.best_step)
        try:
            prune(self._folder, rule.keep_last, protected, keep_every=rule.keep_every_steps)
        except OSError as error:
            logger.warning("%s: old checkpoints were not deleted: %s", self._folder, error)


def _is_unwritten(error: Exception) -> bool:
    """Whether an error means that a checkpoint was not written, on this rank or on another; all ranks agree on it."""
    return isinstance(cause_of(error), CheckpointError)
