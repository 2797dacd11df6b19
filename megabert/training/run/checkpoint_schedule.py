"""How a run writes its checkpoints, which it keeps, and what happens where one cannot be written."""

from pathlib import Path
from typing import Any

from megabert.checkpoints.background_writer import CheckpointWriter
from megabert.checkpoints.saving import prune
from megabert.config.run import RunConfig
from megabert.distributed.process_group import World
from megabert.engine.engine import Engine
from megabert.observability.logs import logger
from megabert.training.run.control import RunControl
from megabert.training.run.folder import checkpoints_dir
from megabert.training.state import TrainerState

_CLOSE_S = 120.0
"""How long a run that fails waits for a write that has begun."""


class RunCheckpoints:
    """Writes the states of a run; all methods but ``close`` are called by every rank alike.

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
        control: RunControl,
        state: TrainerState,
    ) -> None:
        """Bind the parts; nothing is written yet. ``state`` is what this start begins with: its best is on the disk."""
        self._config, self._world = config, world
        self._folder, self._status, self._watchdog = checkpoints_dir(run_dir), control.status, control.watchdog
        self._begun: TrainerState | None = None
        self._best = (state.best_step, state.best_loss)
        self._writer = CheckpointWriter(self._folder, engine, world, written=self._after_writing)
        self.counts = self._writer.counts

    def save(self, state: TrainerState) -> TrainerState:
        """Begin to write a state; training may continue when this returns.

        Returns:
            The state that is written: where the best checkpoint could not be, it names the best one that could.
        """
        self._watchdog.expect("copying a checkpoint, or waiting for the previous one")
        # If the previous write failed and it was the best checkpoint so far, the state must not name it as the best.
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
        """On the way out with an error: wait a while for a write that has begun, since it may still be completed."""
        self._watchdog.expect("writing a checkpoint")
        self._writer.close(_CLOSE_S)

    def _after_writing(self, stored: dict[str, Any]) -> None:
        """Record that a newer checkpoint is complete and delete old ones; the writer's thread calls it."""
        self._best = (stored["best_step"], stored["best_loss"])
        self._status.running(step=stored["step"], phase=stored["phase"])
        if not self._world.is_main:
            return
        rule, state = self._config.checkpoint, TrainerState.from_dict(stored)
        protected = state.ends_of_phases(self._config)  # a fork can begin the next phase again from there
        if state.best_step is not None:
            protected.add(state.best_step)
        try:
            prune(self._folder, rule.keep_last, protected, keep_every=rule.keep_every_steps)
        except OSError as error:
            logger.warning("%s: old checkpoints were not deleted: %s", self._folder, error)
