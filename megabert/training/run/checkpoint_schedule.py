"""When a run's checkpoints are written, which are kept, and what happens where one cannot be written."""

from pathlib import Path
from typing import Any

from megabert.checkpoints.background_writer import CheckpointWriter
from megabert.checkpoints.retention import prune
from megabert.config.run import RunConfig
from megabert.distributed.process_group import World
from megabert.engine.engine import Engine
from megabert.observability.logs import logger
from megabert.training.run.control import RunControl
from megabert.training.run.folder import checkpoints_dir
from megabert.training.state import TrainerState

_CLOSE_S = 120.0
"""How long a run that fails lets a write that has begun go on."""


class RunCheckpoints:
    """Writes the states of a run; all methods but ``close`` are called by every rank alike.

    While training goes on, a checkpoint that cannot be written (a full disk) is a warning: the last good one stays, and
    the next is tried at its own time. Where the run is to end, ``settle`` makes it an error.
    """

    def __init__(
        self,
        config: RunConfig,
        *,
        engine: Engine,
        world: World,
        run_dir: Path,
        control: RunControl,
        state: TrainerState,
    ) -> None:
        """Bind the parts; nothing is written yet. ``state`` is what the run starts from: its best is on the disk."""
        self._config, self._world = config, world
        self._folder, self._status, self._watchdog = checkpoints_dir(run_dir), control.status, control.watchdog
        self._begun: TrainerState | None = None
        self._best = (state.best_step, state.best_loss)
        self._writer = CheckpointWriter(self._folder, engine, world, written=self._after_writing)
        self.counts = self._writer.counts

    def save(self, state: TrainerState) -> TrainerState:
        """Begin to write a state; training may go on when this returns.

        Returns:
            The state that is written: where the best checkpoint could not be, it names the best one that could.
        """
        self._watchdog.expect("copying a checkpoint, or waiting for the one before")
        failure = self._writer.make_way()
        if failure is not None and self._begun is not None and state.best_step == self._begun.step:
            state = state.with_best(*self._best)
        self._writer.save(state.step, state.to_dict())
        self._begun = state
        return state

    def wait(self) -> None:
        """Return once nothing is being written, whether that succeeded or not."""
        self._watchdog.expect("writing a checkpoint")
        self._writer.wait()

    def settle(self, state: TrainerState) -> TrainerState:
        """Make sure that a state is on the disk, and return it as ``save`` does.

        Raises:
            CheckpointError: On every rank alike: it could not be written.
        """
        self.wait()
        if self._begun != state or self._writer.wait() is not None:
            state = self.save(state)
            self.wait()
        error = self._writer.wait()
        if error is not None:
            raise error
        return state

    def close(self) -> None:
        """Let a write that has begun be completed, if the other ranks still can; for the way out with an error."""
        self._watchdog.expect("writing a checkpoint")
        self._writer.close(_CLOSE_S)

    def _after_writing(self, stored: dict[str, Any]) -> None:
        """Say that a newer checkpoint stands and drop old ones; the writer's thread calls it."""
        self._best = (stored["best_step"], stored["best_loss"])
        self._status.running(step=stored["step"], phase=stored["phase"])
        if not self._world.is_main:
            return
        rule, state = self._config.checkpoint, TrainerState.from_dict(stored)
        protected = state.ends_of_phases(self._config)  # to begin the next one again, as a fork
        if state.best_step is not None:
            protected.add(state.best_step)
        try:
            prune(self._folder, rule.keep_last, protected, keep_every=rule.keep_every_steps)
        except OSError as error:
            logger.warning("%s: old checkpoints were not deleted: %s", self._folder, error)
