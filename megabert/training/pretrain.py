"""From a configuration to a trained model: set up once, then fit; the same call starts and resumes."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from megabert.config.deepspeed import derive_deepspeed
from megabert.config.recipes import engine_path, phase_data, phase_name
from megabert.config.run import RunConfig
from megabert.data.batch import probe_batch
from megabert.data.packing import shape_for
from megabert.data.shard_set import ShardSet
from megabert.distributed.checkpoint_format import read_manifest
from megabert.distributed.checkpoints import find_checkpoint, has_checkpoint, load_checkpoint
from megabert.distributed.engine import build_engine
from megabert.distributed.process_group import World, distributed_world
from megabert.distributed.run_lock import RunLock
from megabert.errors import CheckpointError, DataError
from megabert.models.bert import BertForPreTraining, Objective
from megabert.models.initialization import initialize
from megabert.observability.logs import log_to_stderr, logger, logging_to_file
from megabert.optim.build import build_optimizer
from megabert.optim.schedules import learning_rate
from megabert.schema import sha256_file
from megabert.training.collectives import on_main
from megabert.training.host import share_host
from megabert.training.probe import find_micro_batch_tokens
from megabert.training.run_folder import announce, checkpoints_dir, claim_run_folder, record_run, tokenizer_dir
from megabert.training.state import TrainerState
from megabert.training.trainer import PhaseData, Trainer
from megabert.training.weights import InitialWeights, load_initial_weights


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What every rank knows before a model is built."""

    config: RunConfig
    deepspeed: dict[str, Any]
    shards: list[tuple[ShardSet, ShardSet]]
    manifests: tuple[str, ...]
    changes: list[str]
    checkpoint: Path | None
    world: World

    @property
    def objective(self) -> Objective:
        """What the shards' next-sentence labels mean: nsp, sop or none."""
        return self.shards[0][0].metadata.objective


def pretrain(
    config: RunConfig,
    run_dir: Path,
    *,
    initial: InitialWeights | None = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
) -> TrainerState:
    """Run, or go on with, a pre-training.

    Args:
        config: As resolved from recipe, files and flags.
        run_dir: Run folder; a run that it holds is continued at its last good checkpoint.
        initial: Weights to start from; read for a new run only.
        device: ``auto``, ``cpu`` or ``cuda``.

    Returns:
        The state after the last step.

    Raises:
        ConfigError, DataError, CheckpointError: Named place, value and remedy; nothing was written if the run is new.
    """
    with distributed_world(device) as world:
        log_to_stderr(world.rank)
        with RunLock(run_dir, world):
            setup = _set_up(config, run_dir, initial, world)
            with logging_to_file(run_dir, world.rank):
                finished = _finished(setup)
                if finished is None:
                    return _run(setup, run_dir, initial)
                done = "%s is done: %d steps. Export it: megabert export %s --to DIR"
                logger.info(done, run_dir, finished.step, run_dir)
                return finished


def _set_up(config: RunConfig, run_dir: Path, initial: InitialWeights | None, world: World) -> Setup:
    """Check everything that can be wrong before anything is written."""
    # Rank 0 looks first, so that bad data is reported once.
    on_main(world, lambda: _open_shards(config, initial) and None)
    shards = _open_shards(config, initial)
    config = _resolve(config, shards, world)
    deepspeed = derive_deepspeed(
        engine_path("zero1" if config.engine == "auto" else config.engine),
        precision=config.precision,
        max_grad_norm=config.optimizer.max_grad_norm,
    )

    def checked_by_main() -> tuple[list[str], Path | None, tuple[str, ...]]:
        changes = claim_run_folder(run_dir, config)
        for train, held_out in shards:
            train.verify()
            held_out.verify()
        manifests = tuple(sha256_file(train.folder / "manifest.json") for train, _ in shards)
        folder = checkpoints_dir(run_dir)
        return changes, find_checkpoint(folder, "last") if has_checkpoint(folder) else None, manifests

    changes, checkpoint, manifests = on_main(world, checked_by_main)
    return Setup(
        config=config,
        deepspeed=deepspeed,
        shards=shards,
        manifests=manifests,
        changes=changes,
        checkpoint=checkpoint,
        world=world,
    )


def _run(setup: Setup, run_dir: Path, initial: InitialWeights | None) -> TrainerState:
    config, world = setup.config, setup.world
    share_host(world)
    model = BertForPreTraining(
        config.model,
        objective=setup.objective,
        ops=config.ops,
        activation_checkpointing=config.activation_checkpointing,
    )
    initialize(model, config.seed)
    if initial is not None and setup.checkpoint is None:
        load_initial_weights(model, initial)
    stored = TrainerState(manifests=setup.manifests)
    budgets = _budgets(model, setup)
    optimizer = build_optimizer(model.named_parameters(), config.optimizer, lamb_backend=config.ops.lamb)
    engine = build_engine(model, optimizer, setup.deepspeed, world)
    if setup.checkpoint is not None:
        stored = TrainerState.from_dict(load_checkpoint(setup.checkpoint, engine, world))
        if config.micro_batch_tokens == "auto":
            budgets = stored.micro_batch_tokens
    state = replace(stored, micro_batch_tokens=budgets)
    if world.is_main:
        record_run(run_dir, config, setup.deepspeed)
        setup.shards[0][0].copy_tokenizer(tokenizer_dir(run_dir))
        _announce_start(setup, state, run_dir)
    phases = [
        PhaseData(
            train=train,
            held_out=held_out,
            shape=shape_for(
                train.statistics,
                global_batch_size=phase.global_batch_size,
                world_size=world.size,
                micro_batch_tokens=tokens,
            ),
        )
        for (train, held_out), phase, tokens in zip(setup.shards, config.phases, budgets, strict=True)
    ]
    trainer = Trainer(
        config, engine=engine, optimizer=optimizer, phases=phases, state=state, run_dir=run_dir, world=world
    )
    if setup.checkpoint is None:
        trainer.save()
    return trainer.fit()


def _finished(setup: Setup) -> TrainerState | None:
    """Return the last state of a run that is complete."""
    if setup.checkpoint is None:
        return None
    state = TrainerState.from_dict(read_manifest(setup.checkpoint).trainer_state)
    _check_same_data(setup, state)
    return state if state.is_done(setup.config) else None


def _open_shards(config: RunConfig, initial: InitialWeights | None) -> list[tuple[ShardSet, ShardSet]]:
    folders = [phase_data(config, phase) for phase in config.phases]
    shards = [(ShardSet.open(folder, "train"), ShardSet.open(folder, "validation")) for folder in folders]
    if initial is not None:
        initial.check_tokenizer(shards[0][0].metadata.tokenizer_sha256, shards[0][0].folder)
    _check_shards(config, shards)
    return shards


def _resolve(config: RunConfig, shards: list[tuple[ShardSet, ShardSet]], world: World) -> RunConfig:
    """Replace every ``auto`` of a science field by what it means here."""
    precision = config.precision
    if precision == "auto":
        bf16 = world.device.type == "cuda" and torch.cuda.is_bf16_supported()
        precision = "bf16" if bf16 else "fp16" if world.device.type == "cuda" else "fp32"
    vocab_size = config.model.vocab_size
    if vocab_size == "auto":
        vocab_size = shards[0][0].metadata.vocab_size
    return replace(config, precision=precision, model=replace(config.model, vocab_size=vocab_size))


def _check_shards(config: RunConfig, shards: list[tuple[ShardSet, ShardSet]]) -> None:
    """Hold the shards of every phase against the model and against each other."""
    first = shards[0][0]
    for i, ((train, _), phase) in enumerate(zip(shards, config.phases, strict=True)):
        metadata = train.metadata
        if metadata.max_seq_length > phase.max_seq_length:
            raise DataError(
                f"{train.folder}: instances of up to {metadata.max_seq_length} tokens, but "
                f"phases[{i}].max_seq_length={phase.max_seq_length}. Name shards of that length, or change the phase."
            )
        if config.model.vocab_size not in ("auto", metadata.vocab_size):
            raise DataError(
                f"{train.folder}: made with {metadata.vocab_size} pieces, but model.vocab_size="
                f"{config.model.vocab_size}. Leave model.vocab_size at auto, or build the shards with that tokenizer."
            )
        if (metadata.tokenizer_sha256, metadata.objective) != (
            first.metadata.tokenizer_sha256,
            first.metadata.objective,
        ):
            raise DataError(
                f"{train.folder}: tokenizer or objective differ from {first.folder}. "
                "Build the shards of all phases together: megabert-data build --lengths 128 512."
            )


def _check_same_data(setup: Setup, state: TrainerState) -> None:
    for i, (old, new) in enumerate(zip(state.manifests, setup.manifests, strict=True)):
        if old != new:
            raise CheckpointError(
                f"phases[{i}]: the shards in {setup.shards[i][0].folder} are not those that the run began with "
                f"(manifest SHA-256 {new[:12]}, recorded {old[:12]}). Name the first ones, or start a new run: "
                "--init-from RUN --run-dir NEW."
            )


def _budgets(model: BertForPreTraining, setup: Setup) -> tuple[int, ...]:
    """Return the token budget of each phase: as set, or found by trying."""
    config, world = setup.config, setup.world
    if config.micro_batch_tokens != "auto":
        return tuple(config.micro_batch_tokens for _ in config.phases)
    budgets = []
    for (train, _), phase in zip(setup.shards, config.phases, strict=True):
        statistics = train.statistics
        share = phase.global_batch_size * statistics.tokens // max(1, statistics.rows * world.size)
        budgets.append(
            find_micro_batch_tokens(
                lambda tokens, length=statistics.max_seq_length: _try_micro_step(model, setup, tokens, length),  # type: ignore[misc]
                share=share,
                floor=statistics.max_seq_length,
                world=world,
            )
        )
    return tuple(budgets)


def _try_micro_step(model: BertForPreTraining, setup: Setup, tokens: int, length: int) -> None:
    """Run forward and backward with the optimizer's memory set aside; raises on a GPU that cannot hold it."""
    device = setup.world.device
    if device.type == "cpu":
        return
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[setup.config.precision]
    parameters = sum(parameter.numel() for parameter in model.parameters())
    # float32 gradients whole, master weights and both moments sharded: ZeRO-1, the largest of the sharded stages.
    ballast = torch.empty(parameters * (4 + 12 // setup.world.size), dtype=torch.uint8, device=device)
    trial = BertForPreTraining(
        setup.config.model,
        objective=setup.objective,
        ops=setup.config.ops,
        activation_checkpointing=setup.config.activation_checkpointing,
    ).to(device, dtype)
    output = trial(probe_batch(tokens=tokens, length=length).to(device))
    (output.mlm_loss_sum + output.nsp_loss_sum).backward()
    del trial, output, ballast


def _announce_start(setup: Setup, state: TrainerState, run_dir: Path) -> None:
    config, world = setup.config, setup.world
    logger.info("TensorBoard: tensorboard --logdir %s", run_dir / "tb")
    logger.info(
        "%d rank(s) on %s, %s, ZeRO-%d, micro_batch_tokens %s",
        world.size,
        world.device.type,
        config.precision,
        setup.deepspeed.get("zero_optimization", {}).get("stage", 0),
        ", ".join(map(str, state.micro_batch_tokens)),
    )
    if setup.checkpoint is None:
        logger.info("new run in %s", run_dir)
        return
    announce(setup.changes)
    phase = config.phases[state.phase]
    logger.info(
        "resuming %s at step %d (%s, step %d of %d), learning rate %.3e, data at epoch %d, instance %d",
        run_dir,
        state.step,
        phase_name(config, state.phase),
        state.phase_step,
        phase.steps,
        learning_rate(phase, min(state.phase_step + 1, phase.steps)),
        state.position.epoch,
        state.position.offset,
    )
