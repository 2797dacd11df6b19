"""A fine-tuning from settings to scores: one engine, one seed after the other, and their mean (``seed_results``)."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from megabert.distributed import process_group
from megabert.distributed.cpu_host import share_host
from megabert.distributed.run_lock import RunLock
from megabert.downstream.export.sources import find_device
from megabert.downstream.finetuning import seed_results
from megabert.downstream.finetuning.model import TaskModel
from megabert.downstream.finetuning.saved_model import write_model
from megabert.downstream.finetuning.setup import Prepared, prepare
from megabert.downstream.finetuning.tasks import Task
from megabert.downstream.finetuning.trainer import NonFiniteOutputs, NonFiniteSteps, TaskTrainer
from megabert.engine.engine import build_engine, refuse_precision, resolve_precision
from megabert.engine.master_weights import start_over, whole_masters
from megabert.foundation.errors import CheckpointError, MegabertError
from megabert.foundation.json_files import write_json
from megabert.models.build import initial_value, initialize, load_initial_weights
from megabert.models.convert import UNREAD_POSITIONS
from megabert.observability.logs import log_to_stderr, logger, logging_to_file
from megabert.ops.backend import describe_choices
from megabert.optim import build_optimizer
from megabert.settings.command_line.arguments import Device
from megabert.settings.config.deepspeed import derive_deepspeed
from megabert.settings.config.finetune import FREE_FIELDS, FinetuneConfig
from megabert.settings.config.loading import to_dict
from megabert.settings.config.run import OptimizerConfig
from megabert.training.proven_ops import prove_ops


def finetune(task: Task, config: FinetuneConfig, output_dir: Path, *, device: Device = "auto") -> seed_results.Summary:
    """Fine-tune with every seed, and return the summary that ``results.json`` holds.

    A seed that has finished in ``output_dir`` is not trained again; one that was killed starts from the beginning. One
    that diverges is told at the end, after the others.

    Args:
        task: The task, with the columns in use.
        config: The settings.
        output_dir: A new folder, or the folder of an earlier run with the same settings, data and weights.
        device: The device to train on; ``auto`` takes a GPU if there is one.

    Raises:
        ConfigError, DataError, CheckpointError: The message names place, value and remedy.
    """
    with process_group.distributed_world(device) as world:
        log_to_stderr(world.rank)
        engine_settings(config, world.device)  # refused before the folder is claimed
        prepared = process_group.run_on_all_ranks(world, lambda: prepare(task, config))
        with RunLock(output_dir, world):
            path = output_dir / seed_results.SETTINGS_NAME
            process_group.run_on_main_rank(world, lambda: seed_results.claim_folder(path, finetune_settings(prepared)))
            seeds = range(config.seed, config.seed + config.seeds)
            pending = process_group.run_on_main_rank(
                world, lambda: [seed for seed in seeds if not has_finished(output_dir, seed)]
            )
            if pending:
                with logging_to_file(output_dir, world.rank):
                    _train_seeds(prepared, pending, output_dir, world)
            return process_group.run_on_main_rank(world, lambda: seed_results.summarize(output_dir, task.name, seeds))


def check_finetuning(task: Task, config: FinetuneConfig, output_dir: Path, *, device: Device = "auto") -> Prepared:
    """Make the checks of `finetune` before its first step, and return the prepared training; nothing is written.

    With ``cuda`` on a machine without a GPU everything but the GPU is checked: a login node may have none.

    Raises:
        ConfigError, DataError, CheckpointError: The message names place, value and remedy.
    """
    engine_settings(config, torch.device("cuda") if device == "cuda" else find_device(device))
    prepared = prepare(task, config)
    seed_results.check_folder(output_dir / seed_results.SETTINGS_NAME, finetune_settings(prepared))
    build_task_model(prepared)
    return prepared


def lacks_gpu(device: Device) -> bool:
    """Tell whether a GPU is asked for that this machine does not have."""
    return device == "cuda" and not torch.cuda.is_available()


def finetune_settings(prepared: Prepared) -> seed_results.FinetuneSettings:
    """Return which fine-tuning a folder is to record."""
    task, config = prepared.kind.task, prepared.kind.config
    places = {"model": config.model, "data": config.data}
    return seed_results.FinetuneSettings(
        task=task.name, settings=fixed_settings(config), sha256=prepared.identity, package=task.package, **places
    )


def fixed_settings(config: FinetuneConfig) -> dict[str, Any]:
    """Return the settings that a resumed fine-tuning may not change, as its folder records them."""
    return {name: value for name, value in to_dict(config).items() if name not in FREE_FIELDS}


def has_finished(output_dir: Path, seed: int) -> bool:
    """Tell whether a seed has its result and its model; a seed without its model is trained again."""
    folder = seed_results.seed_folder(output_dir, seed)
    if not (folder / seed_results.RESULT_NAME).exists():
        return False
    gone = [name for name in ("config.json", "model.safetensors") if not (folder / "model" / name).is_file()]
    if gone:
        logger.warning("%s is gone: seed %d is trained again", folder / "model" / gone[0], seed)
    return not gone


class ReadyTrainer(NamedTuple):
    """Model and engine, ready for a seed."""

    trainer: TaskTrainer
    start: dict[str, Tensor]
    """The whole parameters before the first step."""
    given: set[str]
    """Names of the weights that the model was given, which do not depend on the seed."""
    kept: dict[str, Tensor]
    """The weights that no text reaches, which are written as they were."""
    replaced_ops: tuple[str, ...]
    """A sentence for each op whose kernel is wrong here and was replaced."""


def build_trainer(prepared: Prepared, world: process_group.World) -> ReadyTrainer:
    """Build model and engine; every rank calls it."""
    kind, config = prepared.kind, prepared.kind.config
    share_host(world)
    precision = resolve_precision(config.precision, world.device)
    lengths = [kind.max_seq_length]
    replaced = prove_ops(prepared.model, config.ops, world, lengths=lengths, precision=precision, has_lamb=False)
    model, given, kept = process_group.run_on_all_ranks(world, lambda: build_task_model(prepared))
    start = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    adamw = OptimizerConfig(name="adamw", betas=config.betas, eps=config.eps, weight_decay=config.weight_decay)
    optimizer = build_optimizer(model.named_parameters(), adamw)
    engine = build_engine(model, optimizer, engine_settings(config, world.device), world)
    batcher = kind.batcher(prepared.train, rank=world.rank, world_size=world.size)
    trainer = TaskTrainer(engine, kind, batcher, prepared.evaluation, world)
    return ReadyTrainer(trainer, start, given, kept, replaced)


def _train_seeds(prepared: Prepared, seeds: list[int], output_dir: Path, world: process_group.World) -> None:
    """Build model and engine once, and train one seed after the other with them."""
    kind, config = prepared.kind, prepared.kind.config
    ready = build_trainer(prepared, world)
    engine = ready.trainer.engine
    # Each seed starts from the first weights, and from the optimizer and loss scale of a new engine.
    first_state = engine.state()
    diverged: list[MegabertError] = []
    # The log names the sizes and the ops in use.
    sizes = f"{len(prepared.train)} training items, {len(kind.labels)} labels, {world.size} rank(s)"
    logger.info(prepared.describe())
    logger.info("%s: %s on %s, ZeRO-%d", kind.task.name, sizes, world.device.type, engine.zero_stage)
    settings: dict[str, Any] = {"model": prepared.model, "precision": resolve_precision(config.precision, world.device)}
    logger.info(describe_choices(config.ops.backends, world.device.type, has_lamb=False, **settings))
    for seed in seeds:
        # Weights that the model was given are the same for all seeds, the others are drawn.
        drawn = {
            name: initial_value(name, value.shape, seed=seed, config=prepared.model)
            for name, value in ready.start.items()
            if name not in ready.given
        }
        start_over(engine, ready.start | drawn)
        engine.load_state(first_state)
        try:
            _train_seed(ready, prepared, seed, seed_results.seed_folder(output_dir, seed))
        except (NonFiniteSteps, NonFiniteOutputs) as error:  # on every rank alike, and the next seed starts over
            diverged.append(type(error)(f"seed {seed}: {error}"))
            if world.is_main and len(seeds) > 1:
                logger.error("%s The other seeds continue.", diverged[-1])
    for sentence in ready.replaced_ops:  # once more, where the end of the log is read
        logger.warning("%s", sentence)
    if diverged:
        process_group.raise_everywhere(world, diverged[0])


def _train_seed(ready: ReadyTrainer, prepared: Prepared, seed: int, folder: Path) -> None:
    """Train one seed, score every evaluation set with its best weights, and write predictions, model and result."""
    trainer, world = ready.trainer, ready.trainer.world
    process_group.run_on_main_rank(world, lambda: folder.mkdir(parents=True, exist_ok=True))
    training, best = trainer.run(seed, folder)
    # The first set was scored with these weights when they turned out best; the others are scored now.
    metrics: seed_results.Metrics = {}
    baseline: seed_results.Metrics = {}
    files: list[str] = []
    for number, data in enumerate(trainer.evaluation):
        predictions, metrics[data.name] = trainer.evaluate(data) if number else best
        if world.is_main:
            baseline[data.name] = prepared.kind.baseline(data.examples)
            written = prepared.kind.write(predictions, metrics[data.name], folder / f"predictions_{data.name}")
            files += [path.name for path in written]
    state = {**whole_masters(trainer.engine, world), **ready.kept}

    def write() -> None:
        if not (folder / "model" / "config.json").is_file():  # remains of an export of this seed
            shutil.rmtree(folder / "model", ignore_errors=True)
        write_model(folder / "model", prepared, state, metrics, training)
        content = {"seed": seed, "metrics": metrics, "baseline": baseline, **training.to_dict(), "predictions": files}
        content |= {"learning_rate": prepared.kind.config.learning_rate, "replaced_ops": list(ready.replaced_ops)}
        write_json(folder / seed_results.RESULT_NAME, content)

    process_group.run_on_main_rank(world, write)


def build_task_model(prepared: Prepared) -> tuple[TaskModel, set[str], dict[str, Tensor]]:
    """Return the model, the names of the weights that it was given, which do not depend on the seed, and the weights
    that no text reaches, which are written as they were.

    Raises:
        CheckpointError: The weights lack a part of the encoder.
    """
    kind, config, source = prepared.kind, prepared.kind.config, prepared.source.weights
    checkpointing = config.activation_checkpointing
    model = TaskModel(
        prepared.model, kind.head, kind.num_outputs, ops=config.ops, activation_checkpointing=checkpointing
    )
    initialize(model, config.seed)
    if config.random_weights:
        logger.info("random weights: %s gives shape and tokenizer alone", config.model)
        return model, set(), {}
    # Parameters that the source lacks stay as they were drawn; of the encoder it may lack none but the pooler's.
    state = source.read()
    new = load_initial_weights(model, replace(source, read=lambda: state))
    encoder = [name for name in new if name.startswith("bert.") and not name.startswith("bert.pooler.")]
    if encoder:
        lost = f"{len(encoder)} parameters of the encoder, such as {encoder[0]}"
        raise CheckpointError(f"{source.source}: the weights lack {lost}. Give a complete model.")
    return model, set(state), {name: value for name, value in state.items() if name == UNREAD_POSITIONS}


def engine_settings(config: FinetuneConfig, device: torch.device) -> dict[str, Any]:
    """Return the dictionary for DeepSpeed.

    Raises:
        ConfigError: Precision and device, or precision and engine, do not go together.
    """
    precision = resolve_precision(config.precision, device)
    refuse_precision(precision, device)
    # In fp32 the weights are their own masters: there is little to shard, and flattening them would only cost time.
    chosen = ("zero0" if precision == "fp32" else "zero1") if config.engine == "auto" else config.engine
    return derive_deepspeed(chosen, precision=precision, max_grad_norm=config.max_grad_norm)
