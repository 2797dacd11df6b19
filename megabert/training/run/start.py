"""How a run begins when the program is started: new, resumed, or forked from another run."""

from dataclasses import dataclass
from pathlib import Path

from megabert.checkpoints.format import CheckpointManifest, read_checkpoint_manifest
from megabert.checkpoints.loading import find_checkpoint, has_checkpoint
from megabert.checkpoints.saving import recover
from megabert.errors import CheckpointError
from megabert.training.checked_inputs import RunInputs
from megabert.training.run.folder import checkpoints_dir, claim_run_folder, fork_command
from megabert.training.run.fork import changes_since_fork, find_fork, state_after_fork
from megabert.training.run.status import RunStatus
from megabert.training.state import TrainerState


@dataclass(frozen=True, kw_only=True)
class RunStart:
    """Where a start of the program takes up a run. Use ``new``, ``resumed`` or ``forked``."""

    state: TrainerState
    """State before the first step that this start makes."""
    checkpoint: Path | None = None
    """Checkpoint that weights and moments are read from; None for a new run."""
    manifest: CheckpointManifest | None = None
    """Manifest of that checkpoint."""
    has_own_checkpoint: bool = False
    """Whether the run folder holds a checkpoint; if not, one is written before the first step."""
    changes: tuple[str, ...] = ()
    """Lines that say which fields differ from the last start, or from the run that this one is a fork of."""

    @classmethod
    def new(cls, inputs: RunInputs) -> "RunStart":
        """Begin with step 1, from random or given weights."""
        return cls(state=TrainerState(data_sha256=inputs.data_sha256))

    @classmethod
    def resumed(cls, run_dir: Path, inputs: RunInputs, changes: list[str]) -> "RunStart":
        """Continue a run at its last good checkpoint, as if it had never been interrupted.

        Args:
            run_dir: Run folder.
            inputs: What the run reads now.
            changes: Engine fields that differ from the last start.

        Raises:
            CheckpointError: Every checkpoint is damaged, or the shards are not those that the run began with.
        """
        checkpoint = find_checkpoint(checkpoints_dir(run_dir), "last")
        manifest = read_checkpoint_manifest(checkpoint)
        state = TrainerState.from_dict(manifest.trainer_state)
        _check_same_data(run_dir, inputs, state)
        return cls(
            state=state, checkpoint=checkpoint, manifest=manifest, has_own_checkpoint=True, changes=tuple(changes)
        )

    @classmethod
    def forked(cls, inputs: RunInputs) -> "RunStart":
        """Begin a new run with everything that another one had at the checkpoint that ``fork`` names.

        Raises:
            CheckpointError, ConfigError: No such checkpoint, or nothing is left to do there.
        """
        assert inputs.config.fork is not None
        checkpoint = find_fork(inputs.config.fork)
        manifest = read_checkpoint_manifest(checkpoint)
        state = state_after_fork(
            TrainerState.from_dict(manifest.trainer_state), inputs.config, data_sha256=inputs.data_sha256
        )
        changes = tuple(changes_since_fork(inputs.config))
        return cls(state=state, checkpoint=checkpoint, manifest=manifest, changes=changes)


def find_start(run_dir: Path, inputs: RunInputs, status: RunStatus) -> RunStart:
    """Check the run folder against the configuration and decide how the run begins. Rank 0 calls it.

    A folder that has a checkpoint is always resumed: a run that was begun never starts again from nothing, nor from the
    run that it is a fork of.

    Raises:
        CheckpointError, ConfigError: The folder holds something else, or there is nothing to begin with.
    """
    changes = claim_run_folder(run_dir, inputs.config)
    recover(checkpoints_dir(run_dir))
    if has_checkpoint(checkpoints_dir(run_dir)):
        status.open()  # what goes wrong from here on is this run's own failure
        return RunStart.resumed(run_dir, inputs, changes)
    return RunStart.new(inputs) if inputs.config.fork is None else RunStart.forked(inputs)


def _check_same_data(run_dir: Path, inputs: RunInputs, state: TrainerState) -> None:
    for i, (old, new) in enumerate(zip(state.data_sha256, inputs.data_sha256, strict=True)):
        if old != new:
            raise CheckpointError(
                f"phases[{i}]: the shards in {inputs.shards[i][0].folder} are not those that the run began with "
                f"(SHA-256 {new[:12]}, recorded {old[:12]}). Name the first ones, or begin a new run with these: "
                f"{fork_command(run_dir)}",
                see="the-run-folder-holds-another-experiment",
            )
