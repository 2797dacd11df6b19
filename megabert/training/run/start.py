"""How a run begins: its inputs, checked as a whole, and whether it is new, resumed, or a fork of another one.

Resuming refuses every change of a ``science`` field, because the result would be an experiment that no single
configuration describes. A fork is the way to make such a change in the open: a new run that begins with everything
another run had at a checkpoint, in a folder of its own, whose configuration names where it comes from.

A fork may change:

- Every field of the configuration except the model's sizes and family, which decide the shapes of the stored tensors:
  loading the checkpoint refuses a change there. Learning rate, schedule, batch size, seed, masking and even the
  optimizer may differ, since all keep the same moments; but Muon keeps no second moment of matrices, so that a fork of
  its run stays with it.
- The lengths of phases and their number, as long as the phase of the checkpoint has steps left, or another follows.
- The shards. Each build continues after the instances that were read of it; a new one, also a new source next to the
  old ones, is read from its beginning, because a position in one data set means nothing in another.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from megabert.checkpoints.format import CheckpointManifest, read_checkpoint_manifest
from megabert.checkpoints.loading import find_checkpoint, has_checkpoint
from megabert.checkpoints.saving import recover
from megabert.data.mixture import PhaseShards, open_mixture
from megabert.engine.engine import resolve_precision
from megabert.foundation.errors import CheckpointError, ConfigError, DataError
from megabert.models.build import InitialWeights, PretrainingModel, build_model
from megabert.settings.config.deepspeed import deepspeed_of, zero_stage_of
from megabert.settings.config.families import Objective
from megabert.settings.config.loading import split_fork
from megabert.settings.config.run import RunConfig
from megabert.tokens.shards.folder import InstanceStatistics
from megabert.tokens.shards.recipe_fit import refuse_missing_lengths, refuse_unfit_shards, refuse_unlike_sources
from megabert.tokens.shards.shard_set import ShardSet
from megabert.tokens.tokenization import load_tokenizer
from megabert.training.probes.run_probes import Probe, open_probes
from megabert.training.run import folder
from megabert.training.run.status import RunStatus
from megabert.training.state import TrainerState


@dataclass(frozen=True, kw_only=True)
class RunInputs:
    """A configuration without ``auto`` in its science fields, and what goes with it."""

    config: RunConfig
    deepspeed: dict[str, Any]
    """Complete dictionary for DeepSpeed."""
    shards: tuple[PhaseShards, ...]
    """Instances of each phase."""
    probes: tuple[Probe, ...] = ()
    """Minimal pairs that each validation scores."""

    @property
    def objective(self) -> Objective:
        """Meaning of the shards' next-sentence labels: nsp, sop or none."""
        return self.shards[0].train.first.metadata.objective

    @property
    def zero_stage(self) -> int:
        """DeepSpeed's ZeRO stage."""
        return zero_stage_of(self.deepspeed)

    @property
    def statistics(self) -> list[InstanceStatistics]:
        """Rows, tokens and masked tokens of each phase's training split."""
        phases = zip(self.shards, self.config.phases, strict=True)
        return [train.statistics_in(phase) for (train, _), phase in phases]

    def build_model(self) -> PretrainingModel:
        """Return the model that is trained, without usable weights."""
        return build_model(
            self.config.model,
            objective=self.objective,
            in_fp8=self.config.precision == "fp8",
            ops=self.config.ops,
            activation_checkpointing=self.config.activation_checkpointing,
            z_loss=self.config.z_loss,
        )

    @property
    def data_sha256(self) -> tuple[tuple[str, ...], ...]:
        """Identity of each phase's shards, one for each source, wherever they are stored."""
        return tuple(train.sha256 for train, _ in self.shards)


def open_inputs(
    config: RunConfig, run_dir: Path, *, device: torch.device, initial: InitialWeights | None = None
) -> RunInputs:
    """Open the shards, resolve every ``auto`` of a science field, and check all parts against each other.

    Args:
        config: The configuration.
        run_dir: Folder of the run. If it has a checkpoint, its shards are held to those that it began with
            (`find_start`) and not compared with the recipe, which may have changed since.
        device: Device that is trained on.
        initial: Weights to start from.

    Raises:
        ConfigError: The engine file contradicts the recipe.
        DataError: Shards that are unfinished, damaged, or do not fit the model, the phases, or the initial weights.
    """
    is_new = not has_checkpoint(folder.checkpoints_dir(run_dir))
    if is_new:
        refuse_missing_lengths(config)
    shards = tuple(open_mixture(config, index) for index in range(len(config.phases)))
    refuse_unlike_sources(config, [phase.train.sources for phase in shards])
    if is_new:
        refuse_unfit_shards(config, [phase.train.sources for phase in shards])
    first = shards[0].train.first
    if initial is not None:
        initial.check_tokenizer(first.metadata.tokenizer_sha256, first.folder)
    _check_settings_of_shards(config, shards)
    # From here on nothing that the result depends on is ``auto``, and phases are as long in steps as in tokens.
    totals = [phase.train.statistics for phase in shards]
    config = replace(
        config,
        precision=resolve_precision(config.precision, device),
        model=config.model.with_pieces(first.metadata.vocab_size),
        phases=tuple(
            phase.with_steps(rows=total.rows, tokens=total.tokens)
            for phase, total in zip(config.phases, totals, strict=True)
        ),
    )
    probes: tuple[Probe, ...] = ()
    if config.validation.probes:
        probes = open_probes(config.validation.probes, load_tokenizer(first.tokenizer_dir))
    deepspeed = deepspeed_of(config, config.precision)
    return RunInputs(config=config, deepspeed=deepspeed, shards=shards, probes=probes)


@dataclass(frozen=True, kw_only=True)
class RunStart:
    """Where a start of the program takes up a run."""

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


def find_start(run_dir: Path, inputs: RunInputs, status: RunStatus) -> RunStart:
    """Check the run folder against the configuration and decide how the run begins. Rank 0 calls it.

    A folder that has a checkpoint is always resumed: a run that was begun never starts again from nothing, nor from the
    run that it is a fork of.

    Raises:
        CheckpointError, ConfigError: The folder holds something else, every checkpoint is damaged, the shards have
            changed since the run began, or the checkpoint that ``fork`` names has nothing left to do, or not all
            moments.
    """
    config = inputs.config
    changes = folder.claim_run_folder(run_dir, config)
    recover(folder.checkpoints_dir(run_dir))
    is_own = has_checkpoint(folder.checkpoints_dir(run_dir))
    # A new run: step 1, from random or given weights.
    if not is_own and config.fork is None:
        return RunStart(state=TrainerState(data_sha256=inputs.data_sha256))
    # Otherwise with everything that the run, or the one that it is a fork of, had at a checkpoint.
    if is_own:
        status.open()  # what goes wrong from here on is this run's own failure
        start = resume(run_dir, inputs)
    else:
        assert config.fork is not None
        start = begin_fork(config.fork, inputs)
        changes = [
            change for change in folder.changes_since(split_fork(config.fork)[0], config) if change[:5] != "fork:"
        ]
    return replace(start, has_own_checkpoint=is_own, changes=tuple(changes))


def resume(run_dir: Path, inputs: RunInputs) -> RunStart:
    """Return the start from the run's newest checkpoint, with the state that it holds.

    Raises:
        CheckpointError: Every checkpoint is damaged, or the shards have changed since the run began.
    """
    checkpoint = find_checkpoint(folder.checkpoints_dir(run_dir), "last")
    manifest = read_checkpoint_manifest(checkpoint)
    state = TrainerState.from_dict(manifest.trainer_state, inputs.config)
    _check_same_data(run_dir, inputs, state)
    return RunStart(state=state, checkpoint=checkpoint, manifest=manifest)


def begin_fork(fork: str, inputs: RunInputs) -> RunStart:
    """Return the start from the checkpoint that ``RUN@STEP`` names, with the state with which the new run begins.

    Raises:
        CheckpointError, ConfigError: As `find_fork` and `state_after_fork`.
    """
    checkpoint = find_fork(fork, inputs.config)
    manifest = read_checkpoint_manifest(checkpoint)
    stored = TrainerState.from_dict(manifest.trainer_state)
    state = state_after_fork(stored, inputs.config, data_sha256=inputs.data_sha256)
    return RunStart(state=state, checkpoint=checkpoint, manifest=manifest)


def find_fork(fork: str, config: RunConfig) -> Path:
    """Return the verified checkpoint that ``RUN@STEP`` names.

    Args:
        fork: The name.
        config: Configuration of the new run.

    Raises:
        CheckpointError: No such run or step, or it is damaged.
        ConfigError: Their optimizers keep other moments: Muon has no second ones of matrices, packages have their own.
    """
    run_dir, step = split_fork(fork)
    source = folder.read_config(run_dir)  # says so where the folder is no run folder at all
    old, new = source.optimizer, config.optimizer
    if old.name != new.name and (old.name == "muon" or old.package or new.package):
        raise ConfigError(
            f"--fork {fork}: that run has optimizer.name={old.name}, which keeps other moments than optimizer.name="
            f"{new.name} needs. Keep {old.name}, or take the weights alone: --init-from."
        )
    return find_checkpoint(folder.checkpoints_dir(run_dir), step)


def state_after_fork(
    stored: TrainerState, config: RunConfig, *, data_sha256: tuple[tuple[str, ...], ...]
) -> TrainerState:
    """Return the state with which the new run begins: step, schedule and data position of the checkpoint.

    The other run's best checkpoint and its counts of troubles (skips, spikes, rollbacks) are not taken over. Instances
    that its rollbacks have left out stay left out, as a part of the data position.

    Args:
        stored: State of the checkpoint.
        config: Configuration of the new run.
        data_sha256: Identity of the new run's shards, by phase and source.

    Raises:
        ConfigError: The new configuration has nothing left to do there.
    """
    # Steps have to be left in the phase of the checkpoint, or another phase has to follow.
    if stored.phase >= len(config.phases) or stored.is_done(config):
        steps = config.phases[min(stored.phase, len(config.phases) - 1)].num_steps
        raise ConfigError(
            f"--fork {config.fork}: that checkpoint is at step {stored.phase_step} of phase {stored.phase + 1}, "
            f"and this configuration ends before ({len(config.phases)} phases, the last of {steps} steps). Fork an "
            f"earlier step, or raise phases.{stored.phase}.steps."
        )
    # Everything else of the other run's state is left at its beginning.
    names = ("step", "phase", "phase_step", "phase_skipped", "batches", "samples", "budgets", "positions")
    return TrainerState(data_sha256=data_sha256, **{name: getattr(stored, name) for name in names})


def _check_settings_of_shards(config: RunConfig, shards: tuple[PhaseShards, ...]) -> None:
    """Check the shards of every phase against the model and against each other: tokenizer, length, masks, objective."""
    first = shards[0].train.first
    _check_objective(config, first)
    for i, (own, phase) in enumerate(zip(shards, config.phases, strict=True)):
        # Each phase's shards against the configuration.
        train, metadata = own.train.first, own.train.first.metadata
        train.check_tokenizer()  # the run takes a copy of it, and dynamic masks are drawn by its words
        if metadata.max_seq_length > phase.max_seq_length:
            raise DataError(
                f"{train.place}: instances of up to {metadata.max_seq_length} tokens, but "
                f"phases[{i}].max_seq_length={phase.max_seq_length}. Name shards of that length, or change the phase."
            )
        masks = ("masked_lm_prob", "masked_lm_range", "masked_lm_rarity", "mask_actions")
        named = next((name for name in masks if getattr(phase, name) is not None), None)
        if named and train.has_masks:
            raise DataError(
                f"{train.place}: these shards hold their masks, so that phases[{i}].{named}={getattr(phase, named)} "
                "cannot change them. Build them with --masking dynamic, or leave it out."
            )
        if not config.model.fits_pieces(metadata.vocab_size):
            raise DataError(
                f"{train.place}: made with {metadata.vocab_size} pieces, but model.vocab_size="
                f"{config.model.vocab_size}. Leave model.vocab_size at auto, or build the shards with that tokenizer."
            )
        # And against the first phase's: all phases train one model.
        has_same_tokenizer = metadata.tokenizer_sha256 == first.metadata.tokenizer_sha256
        if not has_same_tokenizer or metadata.objective != first.metadata.objective:
            raise DataError(
                f"{train.place}: tokenizer or objective differ from {first.place}. "
                "Build the shards of all phases together: megabert-data build --lengths 128 512."
            )


def _check_objective(config: RunConfig, shards: ShardSet) -> None:
    """Check the shards' sentence objective against the family's."""
    model, objective = config.model, shards.metadata.objective
    allowed = model.traits.objectives
    if objective not in allowed:
        raise DataError(
            f"{shards.place}: built with objective={objective}, but model.family={model.family} is pre-trained with "
            f"{' or '.join(allowed)}. Build the shards again: megabert-data build --objective {allowed[0]} ..."
        )
    if objective != "none" and model.type_vocab_size < 2:
        raise DataError(
            f"{shards.place}: objective={objective} has two segments, but model.type_vocab_size="
            f"{model.type_vocab_size}. Raise it to 2, or build the shards with --objective none."
        )


def _check_same_data(run_dir: Path, inputs: RunInputs, state: TrainerState) -> None:
    """Refuse shards that the run did not begin with."""
    for i, (old, new) in enumerate(zip(state.data_sha256, inputs.data_sha256, strict=True)):
        if old != new:
            place, now, recorded = inputs.shards[i].train.place_of_difference(new, old)
            raise CheckpointError(
                f"phases[{i}]: the shards in {place} are not the shards that the run began with "
                f"(SHA-256 {now}, recorded {recorded}). Name those, or begin a new run with these: "
                f"{folder.fork_command(run_dir)}",
                see="the-run-folder-holds-another-experiment",
            )
