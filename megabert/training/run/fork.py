"""A new run that begins with everything another run had at a checkpoint, under another configuration."""

from pathlib import Path

from megabert.checkpoints.loading import find_checkpoint
from megabert.config.loading import differences, to_dict
from megabert.config.recipes import split_fork
from megabert.config.run import RunConfig
from megabert.data.position import DataPosition
from megabert.errors import ConfigError
from megabert.training.run.folder import checkpoints_dir, read_config
from megabert.training.state import TrainerState


def find_fork(fork: str) -> Path:
    """Return the verified checkpoint that ``RUN@STEP`` names.

    Raises:
        CheckpointError: No such run or step, or it is damaged.
    """
    run_dir, step = split_fork(fork)
    read_config(run_dir)  # a folder that is none is named as such
    return find_checkpoint(checkpoints_dir(run_dir), step)


def changes_since_fork(config: RunConfig) -> list[str]:
    """Return a line for every field in which a forked run differs from the one that it comes from."""
    assert config.fork is not None
    old = to_dict(read_config(split_fork(config.fork)[0]))
    changed = differences(old, to_dict(config))
    return [f"{path}: {old!r} -> {new!r}" for path, (old, new) in changed.items() if path != "fork"]


def state_after_fork(stored: TrainerState, config: RunConfig, data_sha256: tuple[str, ...]) -> TrainerState:
    """Return the state with which the new run begins: step, schedule and data position of the checkpoint.

    What the other run's folder holds (its best checkpoint) and its troubles stay behind; where the phase has other
    shards now, their order begins anew.

    Raises:
        ConfigError: The new configuration has nothing left to do there.
    """
    if stored.phase >= len(config.phases) or stored.is_done(config):
        steps = config.phases[min(stored.phase, len(config.phases) - 1)].steps
        raise ConfigError(
            f"--fork {config.fork}: that checkpoint stands at step {stored.phase_step} of phase {stored.phase + 1}, "
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
        position=stored.position if has_same_data else DataPosition(),
        budgets=stored.budgets,
        data_sha256=data_sha256,
    )
