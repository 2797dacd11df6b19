"""Numbers that go wrong: when a run returns to a checkpoint, which data it then leaves out, when it gives up.

A batch whose loss or gradients are not finite is skipped, and the run continues. Many of them in a row, or several
losses in a row far above their running median, mean that the weights themselves were spoiled. Then the run returns to
the last checkpoint before the trouble, leaves out the batches that are blamed (`state.BlamedData`), and tries again. A
run that returns to the same checkpoint too often ends with a diagnosis: its data are not the reason.
"""

from pathlib import Path

from megabert.checkpoints.format import read_checkpoint_manifest
from megabert.checkpoints.loading import find_checkpoint
from megabert.checkpoints.saving import forget_after
from megabert.foundation.errors import ConfigError
from megabert.observability.logs import logger
from megabert.settings.config.run import RollbackConfig
from megabert.training.state import TrainerState


def is_due(state: TrainerState, rule: RollbackConfig, *, has_dynamic_loss_scale: bool) -> bool:
    """Whether a run has to return to a checkpoint.

    Under a dynamic loss scale (fp16) skips do not count: the scale overflows on purpose until it fits. A fine-tuning
    keeps no checkpoints to return to, and ends instead (`MOST_SKIPS` of its trainer).
    """
    has_skipped = state.skipped_in_a_row >= rule.after_skips and not has_dynamic_loss_scale
    return has_skipped or state.has_spiked(rule)


def describe_divergence(state: TrainerState, rule: RollbackConfig) -> str:
    """Return the trouble in words."""
    if state.has_spiked(rule):
        return f"{state.spikes_in_a_row} losses in a row were above {rule.spike_ratio:g} times their running median"
    return f"{state.skipped_in_a_row} batches in a row were not finite"


def drop_trouble(checkpoints_dir: Path, failed: TrainerState) -> tuple[Path, int]:
    """Delete the checkpoints since the trouble began; return the newest good one before, and its step.

    Skips change no weight, so that only updates whose loss was a spike make a checkpoint a bad one. Rank 0 calls it.
    """
    target = find_checkpoint(checkpoints_dir, "last", at_most=failed.step - failed.spikes_in_a_row)
    step = read_checkpoint_manifest(target).step
    newer = forget_after(checkpoints_dir, step)
    if newer:
        logger.warning("rollback: checkpoints %s hold what went wrong and are deleted", newer)
    return target, step


def divergence(run_dir: Path, failed: TrainerState, *, reason: str, tried: str, step: int) -> ConfigError:
    """Return the diagnosis that ends a run, with the command that continues from before the trouble.

    Args:
        run_dir: Run folder.
        failed: State that the run has come to.
        reason: The trouble there.
        tried: The remedies that did not help.
        step: Step of a checkpoint that is whole.
    """
    return ConfigError(
        f"{reason} at step {failed.step} (phase {failed.phase + 1}), {tried}: the model has diverged. The checkpoint "
        f"of step {step} is whole: continue from it with a lower learning rate: megabert pretrain ... "
        f"--fork {run_dir}@{step} --run-dir NEW --phases.{failed.phase}.learning_rate LOWER",
        see="the-loss-is-not-finite",
    )
