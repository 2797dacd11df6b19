"""From a configuration to a trained model; the same call starts a run and resumes it.

The order matters. First everything that can be wrong is checked, before anything is written: configuration, shards,
run folder, checkpoint. Then model, optimizer and engine are built and filled. Only then the run folder records the
start, so that one that fails early leaves no trace, and the trainer makes the steps that are left.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from megabert.checkpoints.loading import load_checkpoint
from megabert.config.recipes import phase_name
from megabert.config.run import RunConfig
from megabert.data.packing import shape_for
from megabert.data.shard_set import ShardSet
from megabert.distributed.all_or_none import run_on_all_ranks, run_on_main_rank
from megabert.distributed.cpu_host import share_host
from megabert.distributed.process_group import World, distributed_world
from megabert.distributed.run_lock import RunLock
from megabert.engine.engine import Engine, build_engine
from megabert.errors import EXIT_STOPPED
from megabert.models.build import InitialWeights, build_model, initialize, load_initial_weights
from megabert.observability.logs import log_to_stderr, logger, logging_to_file
from megabert.ops.backend import describe_choices
from megabert.optim import build_optimizer, learning_rate
from megabert.training.checked_inputs import RunInputs, open_inputs
from megabert.training.micro_batch_size import choose_micro_batch_tokens
from megabert.training.recovery.stop_signals import StopSignals
from megabert.training.recovery.watchdog import Watchdog
from megabert.training.run.control import RunControl
from megabert.training.run.folder import record_run, tokenizer_dir
from megabert.training.run.start import RunStart, find_start
from megabert.training.run.status import RunStatus
from megabert.training.state import TrainerState
from megabert.training.trainer import PhaseData, Trainer


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What every rank knows before a model is built."""

    inputs: RunInputs
    run_dir: Path
    world: World
    control: RunControl
    start: RunStart


def pretrain(
    config: RunConfig,
    run_dir: Path,
    *,
    initial: InitialWeights | None = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    stop: StopSignals | None = None,
) -> TrainerState:
    """Start a pre-training, or resume it.

    Args:
        config: Configuration, resolved from recipe, files and flags.
        run_dir: Run folder; a run that it holds is resumed at its last good checkpoint.
        initial: Weights to start from; read for a new run only.
        device: Device to train on; ``auto`` takes a GPU where there is one.
        stop: Signals that end the run early, between two steps and with a checkpoint, on all ranks if on one.

    Returns:
        The state after the last step that was made; ``is_done`` tells whether the run is complete.

    Raises:
        ConfigError, DataError, CheckpointError: Something cannot be used; where the run is new, nothing was written.
    """
    with distributed_world(device) as world:
        log_to_stderr(world.rank)
        with RunLock(run_dir, world):
            status = RunStatus(run_dir, world, fork=config.fork)
            try:
                setup = _set_up(config, run_dir, initial, world, status, stop or StopSignals())
                with logging_to_file(run_dir, world.rank), setup.control.watchdog:
                    return _run_to_end(setup, initial)
            except BaseException as error:
                # Of several ranks that fail, the first one's error is recorded, by the rank itself if it still can.
                first = world.failures.report(error)
                status.failed(first)
                if first is error:
                    raise
                raise first from error


def _run_to_end(setup: Setup, initial: InitialWeights | None) -> TrainerState:
    """Make the steps that a run has left, if any, and record how it ended."""
    config, run_dir, state, status = setup.inputs.config, setup.run_dir, setup.start.state, setup.control.status
    if state.is_done(config):
        logger.info("%s is done: %d steps. Export it: megabert export %s --to DIR", run_dir, state.step, run_dir)
    else:
        state = _train(setup, initial)
    if state.is_done(config):
        status.ended("done", step=state.step, phase=state.phase, exit_code=0)
    else:
        status.ended("stopped", step=state.step, phase=state.phase, exit_code=EXIT_STOPPED)
    return state


def _set_up(
    config: RunConfig,
    run_dir: Path,
    initial: InitialWeights | None,
    world: World,
    status: RunStatus,
    stop: StopSignals,
) -> Setup:
    """Check everything that can be wrong before anything is written."""
    # Each rank opens the shards itself: a node may lack the folder or see another one.
    inputs = run_on_all_ranks(world, lambda: open_inputs(config, device=world.device, initial=initial))
    start = run_on_main_rank(world, lambda: find_start(run_dir, inputs, status))
    if not start.state.is_done(inputs.config):
        run_on_all_ranks(world, lambda: _verify_share(inputs.shards, world))
    watchdog = Watchdog(inputs.config.watchdog, run_dir, world.rank, record=status.hung, size=world.size)
    control = RunControl(status=status, stop=stop, watchdog=watchdog)
    return Setup(inputs=inputs, run_dir=run_dir, world=world, control=control, start=start)


def _train(setup: Setup, initial: InitialWeights | None) -> TrainerState:
    """Build model, optimizer and engine, fill them from the checkpoint if there is one, and train."""
    inputs, world, start = setup.inputs, setup.world, setup.start
    config = inputs.config
    share_host(world)
    model = build_model(
        config.model,
        objective=inputs.objective,
        ops=config.ops,
        activation_checkpointing=config.activation_checkpointing,
    )
    initialize(model, config.seed)
    if initial is not None and start.checkpoint is None:
        run_on_all_ranks(world, lambda: load_initial_weights(model, initial))
    tokens = choose_micro_batch_tokens(model, inputs, stored=start.state.budgets, world=world)
    state = replace(start.state, budgets=tokens)
    optimizer = build_optimizer(model.named_parameters(), config.optimizer, lamb_backend=config.ops.lamb)
    engine = build_engine(model, optimizer, inputs.deepspeed, world)
    if start.checkpoint is not None:
        load_checkpoint(start.checkpoint, engine, world)
    # From here on the folder belongs to this run, and an error is the run's own failure.
    run_on_main_rank(world, lambda: _record_start(setup, state))
    setup.control.status.open()
    setup.control.status.running(step=state.step, phase=state.phase)
    return _fit(setup, engine, state)


def _fit(setup: Setup, engine: Engine, state: TrainerState) -> TrainerState:
    config = setup.inputs.config
    phases = [
        PhaseData(
            train=train,
            held_out=held_out,
            shape=shape_for(
                train.statistics,
                global_batch_size=phase.global_batch_size,
                world_size=setup.world.size,
                micro_batch_tokens=tokens,
            ),
        )
        for (train, held_out), phase, tokens in zip(
            setup.inputs.shards, config.phases, state.budgets.tokens, strict=True
        )
    ]
    trainer = Trainer(
        config,
        engine=engine,
        phases=phases,
        state=state,
        run_dir=setup.run_dir,
        world=setup.world,
        control=setup.control,
    )
    if not setup.start.has_own_checkpoint:
        trainer.begin()
    return trainer.fit()


def _verify_share(shards: tuple[tuple[ShardSet, ShardSet], ...], world: World) -> None:
    """Compare the SHA-256 of this rank's share of all shards; together the ranks read each shard once."""
    for splits in shards:
        for split in splits:
            split.verify(range(world.rank, len(split.shards), world.size))


def _record_start(setup: Setup, state: TrainerState) -> None:
    """Write what runs into the run folder, and log how it begins."""
    config, world = setup.inputs.config, setup.world
    record_run(setup.run_dir, config, setup.inputs.deepspeed)
    setup.inputs.shards[0][0].copy_tokenizer(tokenizer_dir(setup.run_dir))
    logger.info("TensorBoard: tensorboard --logdir %s", setup.run_dir / "tb")
    logger.info(describe_choices(vars(config.ops), world.device.type))
    logger.info(
        "%d rank(s) on %s, %s, ZeRO-%d, micro_batch_tokens %s",
        world.size,
        world.device.type,
        config.precision,
        setup.inputs.zero_stage,
        ", ".join(map(str, state.budgets.tokens)),
    )
    manifest = setup.start.manifest
    if manifest is None:
        logger.info("new run in %s", setup.run_dir)
        return
    origin = "the last start" if setup.start.has_own_checkpoint else f"{config.fork}, of which this is a fork"
    sizes = (("ranks", manifest.world_size, world.size), ("ZeRO stage", manifest.zero_stage, setup.inputs.zero_stage))
    for change in (*setup.start.changes, *(f"{name}: {old} -> {new}" for name, old, new in sizes if old != new)):
        logger.info("changed since %s: %s", origin, change)
    phase = config.phases[state.phase]
    logger.info(
        "resuming %s at step %d (%s, step %d of %d), learning rate %.3e, data at epoch %d, instance %d",
        setup.run_dir,
        state.step,
        phase_name(config, state.phase),
        state.phase_step,
        phase.steps,
        learning_rate(phase, min(state.phase_step + 1, phase.steps)),
        state.position.epoch,
        state.position.offset,
    )
