"""From a configuration to a trained model; the same call starts a run and resumes it.

The order matters. First everything that can be wrong is checked, before anything is written: configuration, shards,
run folder, checkpoint. Then model, optimizer and engine are built and filled. Only then the run folder records the
start, so that a start that fails early leaves no trace, and the trainer makes the remaining steps.
"""

import shlex
import time
from contextlib import closing
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from megabert.checkpoints.loading import load_checkpoint
from megabert.distributed import process_group
from megabert.distributed.cpu_host import share_host
from megabert.distributed.run_lock import RunLock
from megabert.engine.engine import Engine, build_engine, refuse_precision
from megabert.engine.weight_average import WeightAverage
from megabert.foundation.errors import EXIT_STOPPED, ConfigError, DataError
from megabert.models.build import InitialWeights, initialize, load_initial_weights
from megabert.models.matrices import layer_matrices
from megabert.observability.logs import log_to_stderr, logger, logging_to_file
from megabert.ops.backend import describe_choices
from megabert.optim import build_optimizer, learning_rate
from megabert.settings.config.loading import phase_name
from megabert.settings.config.run import RunConfig
from megabert.training.callbacks import Callbacks
from megabert.training.expected_time import cpu_seconds, describe_cpu_time
from megabert.training.micro_batch_size import choose_micro_batch_tokens
from megabert.training.proven_ops import prove_ops
from megabert.training.recovery.stop_signals import StopSignals
from megabert.training.recovery.watchdog import Watchdog
from megabert.training.run.folder import record_run, tokenizer_dir
from megabert.training.run.ready_shards import check_phases, fetching_ahead, is_ahead, keep_checked
from megabert.training.run.start import RunInputs, RunStart, find_start, open_inputs
from megabert.training.run.status import RunStatus
from megabert.training.state import TrainerState
from megabert.training.trainer import Trainer


def pretrain(
    config: RunConfig,
    run_dir: Path,
    *,
    initial: InitialWeights | None = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    stop: StopSignals | None = None,
    callbacks: Callbacks | None = None,
) -> bool:
    """Start a pre-training, or resume it.

    Args:
        config: Configuration, resolved from recipe, files and flags.
        run_dir: Run folder; a run that it holds is resumed at its last good checkpoint.
        initial: Weights to start from; read for a new run only.
        device: Device to train on; ``auto`` takes a GPU if there is one.
        stop: Signals that end the run early, between two steps and with a checkpoint, on all ranks if on one.
        callbacks: Functions that rank 0 calls; the other ranks have to be given some as well.

    Returns:
        Whether the run is complete, and not stopped early.

    Raises:
        ConfigError, DataError, CheckpointError: Something cannot be used; where the run is new, nothing was written.
        MegabertError: A function of ``callbacks`` failed, on all ranks; the run is saved.
    """
    callbacks = callbacks or Callbacks()
    limits = callbacks.extend(config.watchdog)
    with process_group.distributed_world(device, watchdog_start_s=limits.start_up_s) as world:
        log_to_stderr(world.rank)
        with RunLock(run_dir, world):
            status = RunStatus(run_dir, world, fork=config.fork)
            try:
                met = world.broadcast(time.time())
                watchdog = Watchdog(limits, run_dir, world.rank, record=status.hung, size=world.size, met=met)
                with watchdog, world.failures.reporting():
                    parts = world, status, watchdog, stop or StopSignals(), callbacks
                    return _run(config, run_dir, initial, *parts)
            except BaseException as error:
                # Of several ranks that fail, the first one's error is recorded, by the rank itself if it still can.
                status.failed(error)
                raise


def _run(
    config: RunConfig,
    run_dir: Path,
    initial: InitialWeights | None,
    world: process_group.World,
    status: RunStatus,
    watchdog: Watchdog,
    stop: StopSignals,
    callbacks: Callbacks,
) -> bool:
    """Check everything, make the steps that the run has left, if any, and record how it ended."""
    # Each rank opens the shards itself: a node may lack the folder or see another one.
    refuse_precision(config.precision, world.device, config.model)
    inputs = process_group.run_on_all_ranks(
        world, lambda: open_inputs(config, run_dir, device=world.device, initial=initial)
    )
    config = inputs.config
    _require_same_inputs(inputs, world)
    start = process_group.run_on_main_rank(world, lambda: find_start(run_dir, inputs, status))
    watchdog.owns_folder = True
    state = start.state
    if not state.is_done(config):
        # A run that has a checkpoint began with these very shards, and decoded them all then.
        is_new = not start.has_own_checkpoint
        # Later phases' shards that come from elsewhere are fetched while this phase trains.
        ready = [own for index, own in enumerate(inputs.shards) if index == state.phase or not is_ahead(own)]
        checked = check_phases(ready, run_dir, world, watchdog, with_content=is_new)
    with logging_to_file(run_dir, world.rank), watchdog.beating():
        if state.is_done(config):
            name = shlex.quote(str(run_dir))
            logger.info("%s is done: %d steps. Export it: megabert export %s --to DIR", run_dir, state.step, name)
        else:
            # The ops are held against their definitions at the phases' lengths: a sentence for each that was replaced.
            lengths, has_lamb = [data.max_seq_length for data in inputs.statistics], config.optimizer.has_lamb_passes
            settings: dict[str, Any] = {"lengths": lengths, "precision": config.precision, "has_lamb": has_lamb}
            replaced = prove_ops(config.model, config.ops, world, **settings)
            status.replaced(replaced)
            engine, state = _build_engine(inputs, start, initial, world)
            # From here on the folder belongs to this run, and an error is the run's own failure.
            process_group.run_on_main_rank(world, lambda: _record_start(inputs, start, state, run_dir, world))
            keep_checked(checked, run_dir, world)
            status.open()
            status.running(step=state.step, phase=state.phase)
            trainer = Trainer(
                inputs,
                engine=engine,
                state=state,
                run_dir=run_dir,
                world=world,
                status=status,
                stop=stop,
                watchdog=watchdog,
                callbacks=callbacks,
            )
            # An error is published before the others are closed, which wait for files that are being written.
            with closing(trainer), fetching_ahead(inputs.shards[state.phase + 1 :]), world.failures.reporting():
                if not start.has_own_checkpoint:
                    trainer.begin()
                state = trainer.fit()
                process_group.run_on_main_rank(world, callbacks.require_sound)
            for sentence in replaced:  # again, since people read the end of the log
                logger.warning("%s", sentence)
        is_done = state.is_done(config)
        status.ended(0 if is_done else EXIT_STOPPED, step=state.step, phase=state.phase)
    return is_done


def _require_same_inputs(inputs: RunInputs, world: process_group.World) -> None:
    """Refuse ranks that see different shards or packages, or GPUs of different kinds: a node may have its own."""
    config = inputs.config
    for name, own, remedy in (
        ("optimizer.package", config.optimizer.package, "Install one version on all of them"),
        ("precision", config.precision, "Choose a precision that all GPUs have: --precision fp16"),
    ):
        if len(found := sorted({str(value) for value in world.gather(own)})) > 1:
            process_group.raise_everywhere(world, ConfigError(f"{name}: nodes have {' and '.join(found)}. {remedy}."))
    seen = world.gather(inputs.data_sha256)
    rank = next((rank for rank, own in enumerate(seen) if own != seen[0]), None)
    if rank is not None:
        index = next(i for i, (own, first) in enumerate(zip(seen[rank], seen[0], strict=True)) if own != first)
        place, own, first = inputs.shards[index].train.place_of_difference(seen[rank][index], seen[0][index])
        error = DataError(
            f"{place}: rank {rank} sees other shards there than rank 0 (SHA-256 {own} and {first}). Give every node "
            "the same copy."
        )
        process_group.raise_everywhere(world, error)


def _build_engine(
    inputs: RunInputs, start: RunStart, initial: InitialWeights | None, world: process_group.World
) -> tuple[Engine, TrainerState]:
    """Build model, optimizer and engine and fill them; return the state with the size of the micro-batches."""
    config = inputs.config
    share_host(world)
    if world.device.type == "cpu":
        step_s = cpu_seconds(config, inputs.statistics, world.size)
        if world.is_main:  # before the first step, which may itself take hours
            logger.info("%s", describe_cpu_time(config, step_s, start.state.steps_left(config)))
    # BERT, or for ELECTRA generator and discriminator. Each weight is drawn by its name, so alike on every rank.
    model = inputs.build_model()
    initialize(model, config.seed)
    if initial is not None and start.checkpoint is None:
        process_group.run_on_all_ranks(world, lambda: load_initial_weights(model, initial))
    budgets = choose_micro_batch_tokens(model, inputs, stored=start.state.budgets, world=world)
    # Groups of parameters: with weight decay, without (biases and LayerNorm), and the matrices of the layers for Muon.
    matrices = layer_matrices(model, per_head=config.optimizer.muon_heads)
    optimizer = build_optimizer(
        model.named_parameters(), config.optimizer, lamb_backend=config.ops.lamb, matrices=matrices
    )
    # ZeRO-1, unless the configuration names another engine file.
    engine = build_engine(model, optimizer, inputs.deepspeed, world)
    if config.average.decay is not None:
        engine.average = WeightAverage(engine.fragments, config.average.decay, engine.refresh)
    if start.checkpoint is not None:
        load_checkpoint(start.checkpoint, engine, world)
    return engine, replace(start.state, budgets=budgets)


def _record_start(
    inputs: RunInputs, start: RunStart, state: TrainerState, run_dir: Path, world: process_group.World
) -> None:
    """Write the configuration of this start into the run folder, and log how it begins."""
    config, manifest = inputs.config, start.manifest
    record_run(run_dir, config, inputs.deepspeed)
    inputs.shards[0].train.first.copy_tokenizer(tokenizer_dir(run_dir))
    logger.info("TensorBoard: tensorboard --logdir %s", shlex.quote(str(run_dir / "tb")))
    # Machine and sizes: the backend of each op, ranks, precision, token budgets.
    has_lamb = config.optimizer.has_lamb_passes
    settings: dict[str, Any] = {"has_lamb": has_lamb, "model": config.model, "precision": config.precision}
    logger.info(describe_choices(config.ops.backends, world.device.type, **settings))
    logger.info(
        "%d rank(s) on %s, %s, ZeRO-%d, micro_batch_tokens %s",
        world.size,
        world.device.type,
        config.precision,
        inputs.zero_stage,
        ", ".join(map(str, state.budgets.tokens)),
    )
    # Later phases over the same shards.
    for index in range(state.phase + 1, len(config.phases)):
        if not set(state.data_sha256[index]).isdisjoint(chain(*state.data_sha256[:index])):
            continues = config.phases[index].data_start == "continue"
            where = "where that one ends" if continues else "at the first instance again"
            logger.info("%s reads the shards of an earlier phase: it begins %s", phase_name(config, index), where)
    if manifest is None:
        logger.info("new run in %s", run_dir)
        return
    # A resumed run or a fork: its differences to the start that wrote the checkpoint, and its next step.
    origin = "the last start" if start.has_own_checkpoint else f"{config.fork}, of which this is a fork"
    sizes = (("ranks", manifest.world_size, world.size), ("ZeRO stage", manifest.zero_stage, inputs.zero_stage))
    for change in (*start.changes, *(f"{name}: {old} -> {new}" for name, old, new in sizes if old != new)):
        logger.info("changed since %s: %s", origin, change)
    if state.is_phase_done(config):  # the step that comes is the next phase's first
        state = state.next_phase(data_start=config.phases[state.phase + 1].data_start)
    phase = config.phases[state.phase]
    logger.info(
        "resuming %s at step %d (%s, step %d of %d), learning rate %.3e, data at %s",
        run_dir,
        state.step,
        phase_name(config, state.phase),
        state.phase_step,
        phase.num_steps,
        learning_rate(phase, min(state.phase_step + 1, phase.num_steps)),
        "; ".join(
            f"epoch {position.epoch}, instance {position.offset}" + (f" of {name}" if name else "")
            for name, position in inputs.shards[state.phase].train.at(state.positions)
        ),
    )
