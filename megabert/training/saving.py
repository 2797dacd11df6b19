"""When a run's checkpoints are written, which are kept, and what happens where one cannot be written."""

from pathlib import Path
from typing import Any

from megabert.config.run import CheckpointConfig
from megabert.distributed.checkpoint_writer import CheckpointWriter
from megabert.distributed.checkpoints import prune
from megabert.distributed.engine import Engine
from megabert.distributed.process_group import World
from megabert.observability.logs import logger
from megabert.training.run_folder import checkpoints_dir
from megabert.training.state import TrainerState
from megabert.training.status import RunStatus
from megabert.training.watchdog import Watchdog

_CLOSE_S = 120.0
"""How long a run that fails lets a write that has begun go on."""


class RunCheckpoints:
    """Writes the states of a run; all methods but ``close`` are called by every rank alike.

    While training goes on, a checkpoint that cannot be written (a full disk) is a warning: the last good one stays, and
    the next is tried at its own time. Where the run is to end, ``settle`` makes it an error.
    """

    def __init__(
        self,
        config: CheckpointConfig,
        *,
        engine: Engine,
        world: World,
        run_dir: Path,
        status: RunStatus,
        watchdog: Watchdog,
    ) -> None:
        """Bind the parts; nothing is written yet."""
        self._config, self._world = config, world
        self._folder, self._status, self._watchdog = checkpoints_dir(run_dir), status, watchdog
        self._begun: TrainerState | None = None
        self._writer = CheckpointWriter(self._folder, engine, world, written=self._after_writing)
        self.counts = self._writer.counts

    def save(self, state: TrainerState) -> None:
        """Begin to write a state; training may go on when this returns."""
        self._watchdog.expect("copying a checkpoint, or waiting for the one before")
        self._writer.save(state.step, state.to_dict())
        self._begun = state

    def wait(self) -> None:
        """Return once nothing is being written, whether that succeeded or not."""
        self._watchdog.expect("writing a checkpoint")
        self._writer.wait()

    def settle(self, state: TrainerState) -> None:
        """Make sure that a state is on the disk.

        Raises:
            CheckpointError: On every rank alike: it could not be written.
        """
        self.wait()
        if self._begun != state or self._writer.wait() is not None:
            self.save(state)
            self.wait()
        error = self._writer.wait()
        if error is not None:
            raise error

    def close(self) -> None:
        """Let a write that has begun be completed, if the other ranks still can; for the way out with an error."""
        self._watchdog.expect("writing a checkpoint")
        self._writer.close(_CLOSE_S)

    def _after_writing(self, stored: dict[str, Any]) -> None:
        """Say that a newer checkpoint stands and drop old ones; the writer's thread calls it."""
        self._status.running(step=stored["step"], phase=stored["phase"])
        if not self._world.is_main:
            return
        protected = set() if stored["best_step"] is None else {stored["best_step"]}
        try:
            prune(self._folder, self._config.keep_last, protected, keep_every=self._config.keep_every_steps)
        except OSError as error:
            logger.warning("%s: old checkpoints were not deleted: %s", self._folder, error)
