"""A fine-tuning from settings to scores: one engine, one seed after the other, finished seeds kept."""

import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from megabert.config.deepspeed import derive_deepspeed
from megabert.config.finetune import FREE_FIELDS, FinetuneConfig
from megabert.config.loading import differences, to_dict
from megabert.config.recipes import engine_path
from megabert.config.run import OptimizerConfig
from megabert.distributed.all_or_none import run_on_all_ranks, run_on_main_rank
from megabert.distributed.cpu_host import share_host
from megabert.distributed.process_group import World, distributed_world
from megabert.distributed.run_lock import RunLock
from megabert.engine.engine import Engine, build_engine
from megabert.engine.master_weights import start_over, whole_masters
from megabert.errors import CheckpointError
from megabert.finetuning.folder import write_result
from megabert.finetuning.model import TaskModel
from megabert.finetuning.setup import Prepared, prepare
from megabert.finetuning.tasks import Task
from megabert.finetuning.trainer import Fitting
from megabert.models.initial_weights import InitialWeights, load_initial_weights
from megabert.models.initialization import initial_value, initialize
from megabert.observability.logs import log_to_stderr, logger, logging_to_file
from megabert.ops.backend import describe_choices
from megabert.optim import build_optimizer
from megabert.schema.files import atomic_write
from megabert.training.inputs import resolve_precision

SETTINGS_NAME = "finetune.json"
RESULT_NAME = "result.json"
SUMMARY_NAME = "results.json"


def finetune(
    task: Task, config: FinetuneConfig, output_dir: Path, *, device: Literal["auto", "cpu", "cuda"] = "auto"
) -> dict[str, Any]:
    """Fine-tune with every seed, and return the summary that ``results.json`` holds.

    A seed that has finished in ``output_dir`` is not trained again; one that was killed starts anew.

    Args:
        task: With the columns in use.
        config: Settings.
        output_dir: New, or an earlier run with the same settings, data and weights.
        device: ``auto``, ``cpu`` or ``cuda``.

    Raises:
        ConfigError, DataError, CheckpointError: Named place, value and remedy.
    """
    with distributed_world(device) as world:
        log_to_stderr(world.rank)
        prepared = run_on_all_ranks(world, lambda: prepare(task, config))
        with RunLock(output_dir, world):
            run_on_main_rank(world, lambda: _claim(output_dir, prepared))
            seeds = range(config.seed, config.seed + config.seeds)
            pending: list[int] = run_on_main_rank(world, lambda: [s for s in seeds if not _is_done(output_dir, s)])
            if pending:
                with logging_to_file(output_dir, world.rank):
                    _train(prepared, pending, output_dir, world)
            return run_on_main_rank(world, lambda: _summarize(output_dir, prepared, list(seeds)))


def seed_folder(output_dir: Path, seed: int) -> Path:
    """Return the folder of a seed's results."""
    return output_dir / f"seed_{seed}"


def _train(prepared: Prepared, seeds: list[int], output_dir: Path, world: World) -> None:
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
    given = run_on_all_ranks(world, lambda: _given_weights(model, prepared))
    start = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    engine = _engine(model, config, world)
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
    logger.info(
        describe_choices({op: name for op, name in vars(config.ops).items() if op != "lamb"}, world.device.type)
    )
    fitting = Fitting(
        config=config,
        engine=engine,
        family=prepared.family,
        train=prepared.batcher(prepared.train, rank=world.rank, world_size=world.size),
        evaluation=prepared.evaluation_sets(rank=world.rank, world_size=world.size),
        world=world,
    )
    for seed in seeds:
        start_over(engine, _weights_of_seed(start, given, seed, prepared))
        engine.load_state(first_state)
        _run_seed(fitting, prepared, seed, output_dir, world)


def _given_weights(model: TaskModel, prepared: Prepared) -> set[str]:
    """Load the weights to start from, if any, and return the names of those that do not depend on the seed."""
    if prepared.config.random_weights:
        logger.info("random weights: %s gives shape and tokenizer alone", prepared.config.model)
        return set()
    return _load_weights(model, prepared.source.weights)


def _load_weights(model: TaskModel, source: InitialWeights) -> set[str]:
    """Load the encoder and return the names that it gave; what it lacks is the seed's."""
    state = source.read()
    load_initial_weights(
        model,
        InitialWeights(source=source.source, tokenizer_sha256=source.tokenizer_sha256, read=lambda: state),
    )
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


def _engine(model: TaskModel, config: FinetuneConfig, world: World) -> Engine:
    precision = resolve_precision(config.precision, world.device)
    # Alone and in fp32 there is nothing to shard; flattening would only cost time.
    chosen = ("zero0" if precision == "fp32" else "zero1") if config.engine == "auto" else config.engine
    deepspeed = derive_deepspeed(engine_path(chosen), precision=precision, max_grad_norm=config.max_grad_norm)
    optimizer = build_optimizer(
        model.named_parameters(),
        OptimizerConfig(name="adamw", betas=config.betas, eps=config.eps, weight_decay=config.weight_decay),
    )
    return build_engine(model, optimizer, deepspeed, world)


def _run_seed(fitting: Fitting, prepared: Prepared, seed: int, output_dir: Path, world: World) -> None:
    folder = seed_folder(output_dir, seed)
    run_on_main_rank(world, lambda: folder.mkdir(parents=True, exist_ok=True))
    fit, best = fitting.run(seed, folder)
    metrics: dict[str, dict[str, float]] = {}
    files: list[str] = []
    for number, data in enumerate(fitting.evaluation):
        found = fitting.evaluate(data) if number else best
        metrics[data.name] = found.metrics
        if world.is_main:
            stem = folder / f"predictions_{data.name}"
            files += [path.name for path in prepared.family.write(found.predictions, found.metrics, stem)]
    state = whole_masters(fitting.engine, world)

    def finish() -> None:
        write_result(folder / "model", prepared, state, metrics, fit)
        content = {"seed": seed, "metrics": metrics, **fit.to_dict(), "predictions": files}
        atomic_write(folder / RESULT_NAME, json.dumps(content, indent=2) + "\n")  # last: now the seed is done

    run_on_main_rank(world, finish)


def _is_done(output_dir: Path, seed: int) -> bool:
    return (seed_folder(output_dir, seed) / RESULT_NAME).is_file()


def _claim(output_dir: Path, prepared: Prepared) -> None:
    """Record what runs here; refuse a folder that holds something else."""
    science = {k: v for k, v in to_dict(prepared.config).items() if k not in FREE_FIELDS}
    mine = json.loads(json.dumps({"task": prepared.task.name, "settings": science, "sha256": prepared.identity}))
    path = output_dir / SETTINGS_NAME
    if path.is_file():
        recorded = json.loads(path.read_text(encoding="utf-8"))
        changed = differences({k: recorded[k] for k in mine}, mine)
        if changed:
            lines = "\n".join(f"  {name}: {old} -> {new}" for name, (old, new) in changed.items())
            raise CheckpointError(
                f"{output_dir} holds another fine-tuning:\n{lines}\n"
                "Name a new --output-dir, or go back to its settings."
            )
        return
    foreign = [p.name for p in output_dir.iterdir() if not p.name.startswith(".")] if output_dir.is_dir() else []
    if foreign:
        raise CheckpointError(f"{output_dir}: holds {foreign[0]}, so it is left alone. Name a new --output-dir.")
    record = mine | {"model": prepared.config.model, "data": prepared.config.data}
    atomic_write(path, json.dumps(record, indent=2, ensure_ascii=False) + "\n")


def _summarize(output_dir: Path, prepared: Prepared, seeds: list[int]) -> dict[str, Any]:
    """Write and return mean and spread over the seeds, and the best one's folder."""
    results = [json.loads((seed_folder(output_dir, seed) / RESULT_NAME).read_text(encoding="utf-8")) for seed in seeds]
    best = max(results, key=lambda result: result["score"])["seed"]
    summary = {
        "task": prepared.task.name,
        "seeds": seeds,
        "mean": _over_seeds(results, statistics.fmean),
        "deviation": _over_seeds(results, lambda values: statistics.stdev(values) if len(values) > 1 else 0.0),
        "examples_per_s": statistics.fmean(result["examples_per_s"] for result in results),
        "best_seed": best,
        "best_model": str(seed_folder(output_dir, best) / "model"),
    }
    atomic_write(output_dir / SUMMARY_NAME, json.dumps(summary, indent=2) + "\n")
    return summary


def _over_seeds(results: list[dict[str, Any]], function: Any) -> dict[str, dict[str, float]]:
    return {
        name: {metric: function([result["metrics"][name][metric] for result in results]) for metric in metrics}
        for name, metrics in results[0]["metrics"].items()
    }
