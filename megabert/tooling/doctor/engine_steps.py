"""Five steps of a small model under every engine file, held against each other; and a checkpoint between two stages.

Stages 1 and 2 reduce gradients and gather weights by our own code, stage 3 is DeepSpeed's, and stage 0 is one plain
all-reduce. All of them, with overlap and without, have to come to the same losses and weights.
"""

import math
import shutil
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from megabert.checkpoints.loading import find_checkpoint, load_checkpoint
from megabert.checkpoints.saving import snapshot_of, stored_tensors, write_snapshot
from megabert.distributed.process_group import World, run_on_main_rank
from megabert.engine.engine import Engine
from megabert.foundation.errors import MegabertError
from megabert.foundation.full_disk import existing_folder
from megabert.models.bert import terms_of
from megabert.optim import Fragment, StepSettings
from megabert.settings.config.deepspeed import derive_deepspeed, zero_stage_of
from megabert.settings.config.model import ModelConfig
from megabert.settings.config.run import Precision, RunConfig
from megabert.tooling.doctor.finding import Finding, failure, listing
from megabert.tooling.doctor.rates import random_batch, small_engine
from megabert.training.step import counts_of, weighted_loss

STEPS, MICRO_STEPS = 5, 2
LENGTH, TOKENS = 32, 96
LEARNING_RATE = 1e-3
LOSS_TOLERANCE = {"fp32": 1e-5, "bf16": 2e-3, "fp16": 2e-3, "fp8": 2e-3}
"""Greatest relative difference of a loss to stage 0's in fp32; 16 bits keep 8 or 11 significant ones."""
SAME_PRECISION, OTHER_PRECISION = 1e-2, 0.2
"""Greatest ||difference|| / ||update|| of a rank's weights after all steps, in the same precision and in another one.
It is 1e-6 to 1e-3 and 2e-2 on one CPU: sums of ranks are added up in another order."""
REMEDY = "Train with another engine file (--engine), and report this line with the output of megabert doctor."
DISK_REMEDY = "Name a run folder on another file system (--run-dir), and look at the one that it is on now."


class Trained(NamedTuple):
    """The result of training the small model. Weights are whole, by parameter: float64, on the CPU."""

    title: str
    engine: Engine
    losses: list[float]
    initial: dict[str, Tensor]
    weights: dict[str, Tensor]


def small_model(model: ModelConfig) -> ModelConfig:
    """Return a model of the same kind with two layers and narrow heads as wide as the run's."""
    hidden = 2 * model.head_width
    return replace(
        model,
        preset=None,
        num_hidden_layers=2 * (model.num_hidden_groups or 1),
        hidden_size=hidden,
        num_attention_heads=2,
        intermediate_size=2 * hidden,
        embedding_size=None if model.embedding_size is None else min(model.embedding_size, hidden // 2),
        vocab_size=512,
    )


def run_cases(config: RunConfig) -> list[tuple[str, Precision, dict[str, Any]]]:
    """Return title, precision and DeepSpeed dictionary of every case; the first one is the reference."""
    cases: list[tuple[str, Precision, dict[str, Any]]] = [("zero0 in fp32", "fp32", _engine("zero0", "fp32"))]
    for name in dict.fromkeys(("zero1", "zero2", "zero3", config.engine)):
        if name in ("auto", "zero0"):
            continue
        derived = _engine(name, config.precision)
        cases.append((name, config.precision, derived))
        if zero_stage_of(derived) in (1, 2):
            without = {**derived["zero_optimization"], "overlap_comm": False}
            cases.append((f"{name} without overlap", config.precision, {**derived, "zero_optimization": without}))
    return cases


def _engine(name: str, precision: str) -> dict[str, Any]:
    """Return an engine file's dictionary with buckets that are smaller than the small model."""
    derived = derive_deepspeed(name, precision=precision, max_grad_norm=1.0)
    derived["zero_optimization"] = {**derived.get("zero_optimization", {}), "reduce_bucket_size": 50_000}
    return derived


def check_engines(config: RunConfig, world: World, run_dir: Path) -> Iterator[Finding]:
    """Train under every engine and compare; yield this rank's findings. Every rank goes through it."""
    outcomes = [
        _train(replace(config, precision=precision), title, ds_config, world)
        for title, precision, ds_config in run_cases(config)
    ]
    # In 16 bits, DeepSpeed's own stage 3 is nearer to our stages than stage 0 in fp32 is.
    plain = outcomes[0]
    deepspeeds = next(outcome for outcome in outcomes if outcome.engine.zero_stage == 3)
    for outcome in outcomes[1:]:
        yield _compare_losses(outcome, plain, allowed=LOSS_TOLERANCE[config.precision])
        is_same = config.precision == "fp32" or outcome is not deepspeeds
        other = plain if config.precision == "fp32" or outcome is deepspeeds else deepspeeds
        yield _compare_weights(outcome, other, allowed=SAME_PRECISION if is_same else OTHER_PRECISION)
    written = next(outcome for outcome in outcomes if outcome.engine.zero_stage == 1)
    yield _check_checkpoint(written, deepspeeds, world, run_dir)


def _train(config: RunConfig, title: str, ds_config: dict[str, Any], world: World) -> Trained:
    model = small_model(config.model)
    engine = small_engine(config, model, ds_config, world)
    terms, losses = terms_of(engine.module), []
    initial = _whole(engine, world)
    for step in range(1, STEPS + 1):
        seeds = [(step * MICRO_STEPS + i) * world.size + world.rank for i in range(MICRO_STEPS)]
        batches = [random_batch(model, tokens=TOKENS, length=LENGTH, seed=seed, masked_share=None) for seed in seeds]
        # All micro-batches are alike in size, so the counts of the global batch are a multiple.
        counts = {name: count * MICRO_STEPS * world.size for name, count in counts_of(batches[0]).items()}
        total = torch.zeros(1, dtype=torch.float64, device=world.device)
        for batch in batches:
            loss = weighted_loss(engine.forward(batch.to(world.device)), terms, counts=counts, world_size=world.size)
            engine.backward(loss, is_last=batch is batches[-1])
            total += loss.detach().double() / world.size
        result = engine.step(StepSettings(lr=LEARNING_RATE, bias_step=step), total)
        losses.append(float(result.totals[0]))
    engine.settle()
    return Trained(title, engine, losses, initial, _whole(engine, world))


def _whole(engine: Engine, world: World, values_of: Callable[[Fragment], Tensor] = Fragment.view) -> dict[str, Tensor]:
    """Gather every parameter whole, in float64 on the CPU: a sum to which each rank gives its own elements."""
    whole = {name: torch.zeros(shape.numel(), dtype=torch.float64) for name, shape in engine.shapes.items()}
    for fragment in engine.fragments:
        values = values_of(fragment).double().cpu()
        whole[fragment.parameter][fragment.start : fragment.start + fragment.numel] += values
    if not engine.is_replicated:
        for tensor in whole.values():
            dist.all_reduce(tensor, group=world.control)
    return whole


def _compare_losses(outcome: Trained, other: Trained, *, allowed: float) -> Finding:
    pairs = list(zip(outcome.losses, other.losses, strict=True))
    for step, (loss, expected) in enumerate(pairs, start=1):
        if not abs(loss - expected) <= allowed * abs(expected):  # NaN differs from everything
            text = f"{outcome.title}: loss of step {step} is {loss:.8g}, with {other.title} it is {expected:.8g}"
            return failure("engines", f"{text}; allowed is a relative difference of {allowed:g}", REMEDY)
    worst = max(abs(loss - expected) / abs(expected) for loss, expected in pairs)
    text = f"{outcome.title}: losses of {STEPS} steps within {worst:.1e} of {other.title} (allowed {allowed:g})"
    return Finding(area="engines", level="ok", text=text)


def _compare_weights(outcome: Trained, other: Trained, *, allowed: float) -> Finding:
    """Compare the weights that this rank holds, so that a rank with wrong ones is known."""
    difference = update = 0.0
    for fragment in outcome.engine.fragments:
        part = slice(fragment.start, fragment.start + fragment.numel)
        ours, theirs, initial = (
            weights[fragment.parameter][part] for weights in (outcome.weights, other.weights, other.initial)
        )
        difference += float((ours - theirs).square().sum())
        update += float((theirs - initial).square().sum())
    error = math.sqrt(difference / max(update, 1e-30))
    compared = f"{outcome.title}: weights differ from those with {other.title}"
    # A value with all its digits would differ from rank to rank, and each rank have a line of its own.
    if not error <= allowed:
        text = f"{compared} by {error:.2g} of the {STEPS} steps' update; allowed are {allowed:g}"
        return failure("engines", text, REMEDY)
    return Finding(area="engines", level="ok", text=f"{compared} by less than {allowed:g} of the {STEPS} steps' update")


def _check_checkpoint(written: Trained, read: Trained, world: World, run_dir: Path) -> Finding:
    """Save one engine, load another one with it, and compare masters and moments bit for bit."""
    folder = run_on_main_rank(world, lambda: str(existing_folder(run_dir) / f".megabert-doctor-{uuid.uuid4().hex}"))
    title = f"checkpoint of {written.title}, read by {read.title}"
    problem = ""
    try:
        write_snapshot(Path(folder), snapshot_of(written.engine, STEPS, {}, world), world)
        path = run_on_main_rank(world, lambda: str(find_checkpoint(Path(folder), STEPS)))
        load_checkpoint(Path(path), read.engine, world)
    except MegabertError as error:  # on every rank: the rank that failed has the error itself, the others its echo
        problem = str(error).splitlines()[0]
    finally:
        if world.is_main:
            shutil.rmtree(folder, ignore_errors=True)
    if problem:
        return failure("checkpoint", f"{title}: {problem}", DISK_REMEDY)
    differing = []
    for number, name in enumerate(("weights", *written.engine.optimizer.state_names)):
        ours, theirs = (_whole(side.engine, world, partial(_stored, side.engine, number)) for side in (written, read))
        differing += [f"{name} of {key}" for key, values in ours.items() if not torch.equal(values, theirs[key])]
    if differing:
        text = f"{title}: {len(differing)} tensors came back changed: {listing(differing)}"
        return failure("checkpoint", f"{text}; they have to be equal bit for bit", DISK_REMEDY)
    return Finding(area="checkpoint", level="ok", text=f"{title}: weights and moments equal bit for bit")


def _stored(engine: Engine, number: int, fragment: Fragment) -> Tensor:
    """Return a fragment of one of the tensors that a checkpoint holds; zeros if it has none of the kind."""
    tensors = [tensor for _, tensor in stored_tensors(engine, fragment.flat)]
    return fragment.view(tensors[number]) if number < len(tensors) else torch.zeros(fragment.numel)
