"""A fine-tuning from settings to scores: one engine, one seed after the other, finished seeds kept."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

from torch import Tensor

from megabert.config.deepspeed import derive_deepspeed
from megabert.config.finetune import FinetuneConfig
from megabert.config.recipes import engine_path
from megabert.config.run import OptimizerConfig
from megabert.distributed.all_or_none import run_on_all_ranks, run_on_main_rank
from megabert.distributed.cpu_host import share_host
from megabert.distributed.process_group import World, distributed_world
from megabert.distributed.run_lock import RunLock
from megabert.engine.engine import Engine, build_engine, resolve_precision
from megabert.engine.master_weights import start_over, whole_masters
from megabert.errors import CheckpointError
from megabert.finetuning.evaluate import EvaluationSet
from megabert.finetuning.folder import write_model
from megabert.finetuning.model import TaskModel
from megabert.finetuning.results import (
    Metrics,
    Summary,
    claim_folder,
    is_finished,
    seed_folder,
    summarize,
    write_seed_result,
)
from megabert.finetuning.setup import Prepared, prepare
from megabert.finetuning.tasks import Task
from megabert.finetuning.trainer import TaskTrainer
from megabert.models.build import InitialWeights, initial_value, initialize, load_initial_weights
from megabert.observability.logs import log_to_stderr, logger, logging_to_file
from megabert.ops.backend import describe_choices
from megabert.optim import build_optimizer


def finetune(
    task: Task, config: FinetuneConfig, output_dir: Path, *, device: Literal["auto", "cpu", "cuda"] = "auto"
) -> Summary:
    """Fine-tune with every seed, and return the summary that ``results.json`` holds.

    A seed that has finished in ``output_dir`` is not trained again; one that was killed starts from the beginning.

    Args:
        task: The task, with the columns in use.
        config: The settings.
        output_dir: A new folder, or that of an earlier run with the same settings, data and weights.
        device: The device to train on; ``auto`` takes a GPU if there is one.

    Raises:
        ConfigError, DataError, CheckpointError: The message names place, value and remedy.
    """
    with distributed_world(device) as world:
        log_to_stderr(world.rank)
        prepared = run_on_all_ranks(world, lambda: prepare(task, config))
        with RunLock(output_dir, world):
            run_on_main_rank(world, lambda: claim_folder(output_dir, prepared))
            seeds = range(config.seed, config.seed + config.seeds)
            pending: list[int] = run_on_main_rank(world, lambda: [s for s in seeds if not is_finished(output_dir, s)])
            if pending:
                with logging_to_file(output_dir, world.rank):
                    _train_seeds(prepared, pending, output_dir, world)
            return run_on_main_rank(world, lambda: summarize(output_dir, task.name, seeds))


def _train_seeds(prepared: Prepared, seeds: list[int], output_dir: Path, world: World) -> None:
    """Build model and engine once, and train one seed after the other with them."""
    config = prepared.config
    share_host(world)
    model = TaskModel(
        prepared.model,
        head=prepared.family.head,
        num_outputs=prepared.family.num_outputs,
        ops=config.ops,
        activation_checkpointing=config.activation_checkpointing,
    )
    initialize(model, config.seed)
    given: set[str] = set()  # the weights that do not depend on the seed
    if config.random_weights:
        logger.info("random weights: %s gives shape and tokenizer alone", config.model)
    else:
        given = run_on_all_ranks(world, lambda: _load_weights(model, prepared.source.weights))
    # Each seed starts from these weights and from the optimizer and loss scale of a new engine.
    start = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    engine = _build_engine(model, config, world)
    first_state = engine.state()
    logger.info(
        "%s: %d training items, %d labels, %d rank(s) on %s, ZeRO-%d",
        prepared.task.name,
        len(prepared.train),
        len(prepared.family.labels),
        world.size,
        world.device.type,
        engine.zero_stage,
    )
    backends = {op: name for op, name in vars(config.ops).items() if op != "lamb"}
    logger.info(describe_choices(backends, world.device.type))
    batcher = partial(prepared.family.batcher, rank=world.rank, world_size=world.size)
    trainer = TaskTrainer(
        config=config,
        engine=engine,
        family=prepared.family,
        train=batcher(prepared.train),
        evaluation=[
            EvaluationSet(name=name, examples=examples, batcher=batcher(features))
            for name, examples, features in prepared.evaluation
        ],
        world=world,
    )
    for seed in seeds:
        start_over(engine, _weights_of_seed(start, given, seed, prepared))
        engine.load_state(first_state)
        _train_seed(trainer, prepared, seed, seed_folder(output_dir, seed))


def _train_seed(trainer: TaskTrainer, prepared: Prepared, seed: int, folder: Path) -> None:
    """Train one seed, score every evaluation set with its best weights, and write predictions, model and result."""
    world = trainer.world
    run_on_main_rank(world, lambda: folder.mkdir(parents=True, exist_ok=True))
    training, best = trainer.run(seed, folder)
    metrics: Metrics = {}
    files: list[str] = []
    for number, data in enumerate(trainer.evaluation):
        evaluation = trainer.evaluate(data) if number else best
        metrics[data.name] = evaluation.metrics
        if world.is_main:
            stem = folder / f"predictions_{data.name}"
            files += [path.name for path in prepared.family.write(evaluation.predictions, evaluation.metrics, stem)]
    state = whole_masters(trainer.engine, world)

    def write() -> None:
        write_model(folder / "model", prepared, state, metrics, training)
        write_seed_result(folder, seed=seed, metrics=metrics, training=training, predictions=files)

    run_on_main_rank(world, write)


def _load_weights(model: TaskModel, source: InitialWeights) -> set[str]:
    """Load the encoder and return the names of its parameters; what the source lacks is drawn by seed."""
    state = source.read()
    load_initial_weights(model, replace(source, read=lambda: state))
    lacking = [name for name, _ in model.named_parameters() if name not in state]
    encoder = [name for name in lacking if name.startswith("bert.") and not name.startswith("bert.pooler.")]
    if encoder:
        raise CheckpointError(
            f"{source.source}: the weights lack {len(encoder)} parameters of the encoder, such as {encoder[0]}. Give "
            "a complete model."
        )
    return set(state)


def _weights_of_seed(start: Mapping[str, Tensor], given: set[str], seed: int, prepared: Prepared) -> dict[str, Tensor]:
    return {
        name: value if name in given else initial_value(name, value.shape, seed=seed, config=prepared.model)
        for name, value in start.items()
    }


def _build_engine(model: TaskModel, config: FinetuneConfig, world: World) -> Engine:
    precision = resolve_precision(config.precision, world.device)
    # In fp32 the weights are their own masters: there is little to shard, and flattening them would only cost time.
    chosen = ("zero0" if precision == "fp32" else "zero1") if config.engine == "auto" else config.engine
    deepspeed = derive_deepspeed(engine_path(chosen), precision=precision, max_grad_norm=config.max_grad_norm)
    optimizer = build_optimizer(
        model.named_parameters(),
        OptimizerConfig(name="adamw", betas=config.betas, eps=config.eps, weight_decay=config.weight_decay),
    )
    return build_engine(model, optimizer, deepspeed, world)
