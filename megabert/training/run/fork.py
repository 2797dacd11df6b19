"""A fork: a new run that begins with everything another run had at a checkpoint, under another configuration.

Resuming refuses every change of a ``science`` field, because the result would be an experiment that no single
configuration describes. A fork is the way to make such a change in the open: it is a run of its own, in a folder of its
own, whose configuration names where it comes from.

What may change, and why:

- Every field of the configuration, but for what decides the shapes of the stored tensors: the model's sizes and family.
  Loading the checkpoint refuses those. Learning rate, schedule, batch size, seed, masking and even the optimizer may
  differ, since weights and moments have the same form for all of them.
- The lengths of phases and their number, as long as the phase of the checkpoint has steps left, or another follows.
- The shards. A phase whose shards are the same continues behind what was read; other shards are read from their
  beginning, because a position in one data set means nothing in another.
"""

from pathlib import Path

from megabert.checkpoints.loading import find_checkpoint
from megabert.config.loading import differences, to_dict
from megabert.config.recipes import split_fork
from megabert.config.run import RunConfig
from megabert.data.order import BEGINNING
from megabert.errors import ConfigError
from megabert.training.run.folder import checkpoints_dir, read_config
from megabert.training.state import TrainerState


def find_fork(fork: str) -> Path:
    """Return the verified checkpoint that ``RUN@STEP`` names.

    Raises:
        CheckpointError: No such run or step, or it is damaged.
    """
    run_dir, step = split_fork(fork)
    read_config(run_dir)  # says so where the folder is no run folder at all
    return find_checkpoint(checkpoints_dir(run_dir), step)


def changes_since_fork(config: RunConfig) -> list[str]:
    """Return a line for every field in which a forked run differs from the one that it comes from."""
    assert config.fork is not None
    old = to_dict(read_config(split_fork(config.fork)[0]))
    changed = differences(old, to_dict(config))
    return [f"{path}: {old!r} -> {new!r}" for path, (old, new) in changed.items() if path != "fork"]


def state_after_fork(stored: TrainerState, config: RunConfig, *, data_sha256: tuple[str, ...]) -> TrainerState:
    """Return the state with which the new run begins: step, schedule and data position of the checkpoint.

    What the other run's folder holds (its best checkpoint) and its troubles (skips, spikes, rollbacks) stay behind.

    Args:
        stored: State of the checkpoint.
        config: Configuration of the new run.
        data_sha256: Identity of the new run's shards, one of each phase.

    Raises:
        ConfigError: The new configuration has nothing left to do there.
    """
    if stored.phase >= len(config.phases) or stored.is_done(config):
        steps = config.phases[min(stored.phase, len(config.phases) - 1)].steps
        raise ConfigError(
            f"--fork {config.fork}: that checkpoint is at step {stored.phase_step} of phase {stored.phase + 1}, "
            f"and this configuration ends before ({len(config.phases)} phases, the last of {steps} steps). Fork an "
            f"earlier step, or raise phases.{stored.phase}.steps."
        )
    has_same_data = stored.data_sha256[stored.phase : stored.phase + 1] == data_sha256[stored.phase : stored.phase + 1]
    return TrainerState(
        step=stored.step,
        phase=stored.phase,
        phase_step=stored.phase_step,
        batches=stored.batches,
        samples=stored.samples,
        position=stored.position if has_same_data else BEGINNING,
        budgets=stored.budgets,
        data_sha256=data_sha256,
    )
