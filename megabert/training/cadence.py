"""When a run logs, validates and saves."""

from megabert.config.run import RunConfig
from megabert.training.state import TrainerState


class Cadence:
    """Tells what is due after an update; each method is given the state after it."""

    def __init__(self, config: RunConfig) -> None:
        """Keep the intervals."""
        self._config = config

    def is_log_due(self, state: TrainerState) -> bool:
        """Whether to log: at its interval, and at the first and the last step of a phase."""
        is_regular = state.step % self._config.logging.every_steps == 0
        return is_regular or state.phase_step == 1 or state.is_phase_done(self._config)

    def is_validation_due(self, state: TrainerState) -> bool:
        """Whether to score the held-out split: at its interval, and at the end of a phase."""
        return state.step % self._config.validation.every_steps == 0 or state.is_phase_done(self._config)

    def is_checkpoint_due(self, state: TrainerState) -> bool:
        """Whether to save: at its interval, after the best validation so far, and at the end of a phase.

        A state whose loss was a spike may be worthless, and a rollback wants a good one to return to. It is saved only
        where the phase ends with it and no rollback is about to happen.
        """
        if state.is_phase_done(self._config):
            return not state.has_spiked(self._config.rollback)
        is_best = state.best_step == state.step
        return (is_best or state.step % self._config.checkpoint.every_steps == 0) and not state.spikes_in_a_row
