"""Numbers that go wrong: when a run goes back to a checkpoint, which data it then leaves out, when it gives up."""

from pathlib import Path

from megabert.checkpoints.format import read_checkpoint_manifest
from megabert.checkpoints.loading import find_checkpoint
from megabert.checkpoints.retention import forget_after
from megabert.config.run import RollbackConfig
from megabert.errors import ConfigError
from megabert.observability.logs import logger
from megabert.training.run.folder import checkpoints_dir
from megabert.training.state import TrainerState


def is_due(state: TrainerState, rule: RollbackConfig, *, has_dynamic_loss_scale: bool) -> bool:
    """Whether a run has to go back. A dynamic loss scale skips on purpose until it fits."""
    has_skipped = state.skipped_in_a_row >= rule.after_skips and not has_dynamic_loss_scale
    return has_skipped or _has_spiked(state, rule)


def describe(state: TrainerState, rule: RollbackConfig) -> str:
    """Say what went wrong."""
    if _has_spiked(state, rule):
        return f"{state.spikes_in_a_row} losses in a row were above {rule.spike_ratio:g} times their running median"
    return f"{state.skipped_in_a_row} batches in a row were not finite"


def drop_trouble(run_dir: Path, failed: TrainerState) -> tuple[Path, int]:
    """Delete the checkpoints since the trouble began; return the newest good one before, and its step.

    Rank 0 calls it.
    """
    folder = checkpoints_dir(run_dir)
    target = find_checkpoint(folder, "last", at_most=failed.step - failed.spikes_in_a_row)
    step = read_checkpoint_manifest(target).step
    newer = forget_after(folder, step)
    if newer:
        logger.warning("rollback: checkpoints %s hold what went wrong and are deleted", newer)
    return target, step


def divergence(run_dir: Path, failed: TrainerState, *, reason: str, tried: str, step: int) -> ConfigError:
    """Return the diagnosis that ends a run, with the way on.

    Args:
        run_dir: Run folder.
        failed: State that the run has come to.
        reason: What went wrong there.
        tried: What was done against it.
        step: Of a checkpoint that is whole.
    """
    return ConfigError(
        f"{reason} at step {failed.step} (phase {failed.phase + 1}), {tried}: the model has diverged. The checkpoint "
        f"of step {step} is whole: go on from it with a lower learning rate: megabert pretrain ... "
        f"--fork {run_dir}@{step} --run-dir NEW --phases.{failed.phase}.learning_rate LOWER",
        see="the-loss-is-not-finite",
    )


def _has_spiked(state: TrainerState, rule: RollbackConfig) -> bool:
    return rule.spike_ratio is not None and state.spikes_in_a_row >= rule.spike_steps
