"""One seed of a fine-tuning: steps, evaluations (a pass over a set with the present weights), and the best weights."""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from megabert.data.batch import MicroBatch
from megabert.distributed.process_group import World
from megabert.downstream.finetuning.batches import Batcher, Features
from megabert.downstream.finetuning.model import empty_loss
from megabert.downstream.finetuning.seed_results import in_points
from megabert.downstream.finetuning.task_kinds import Example, Prediction, TaskKind
from megabert.engine.engine import Engine, HostCopy
from megabert.engine.master_weights import copy_masters, put_back_masters
from megabert.foundation.errors import CheckpointError, DataError
from megabert.observability.logs import Progress, logger
from megabert.observability.metrics import MetricWriter
from megabert.optim import StepSettings, linear_warmup_decay


class NonFiniteOutputs(CheckpointError):
    """The outputs of a model are NaN or infinite. Every rank of a world has all of them, and raises it alike."""


class EvaluationSet(NamedTuple):
    """A set to score."""

    name: str
    """Stem of the set's file, or ``held_out``."""
    examples: Sequence[Example]
    features: Features
    """The examples, encoded."""


class Evaluation(NamedTuple):
    """The result of one pass over a set."""

    predictions: list[Prediction]
    """One prediction per example, as it is written to a file."""
    metrics: dict[str, float]


Forward = Callable[[MicroBatch, Tensor | None], Tensor]
"""Takes packed sequences and the labelled positions, if the task has any; returns logits."""


def evaluate(
    forward: Forward, kind: TaskKind, data: EvaluationSet, *, device: torch.device, world: World | None = None
) -> Evaluation:
    """Score a set; every rank of a world calls it, with a model in evaluation mode."""
    logits_of_items = compute_logits(forward, kind, data, device=device, world=world)
    predictions = kind.predict(logits_of_items, data.examples, data.features)
    return Evaluation(predictions=predictions, metrics=kind.score(predictions, data.examples))


def compute_logits(
    forward: Forward, kind: TaskKind, data: EvaluationSet, *, device: torch.device, world: World | None = None
) -> list[NDArray]:
    """Return the logits of each item, of shape (rows, outputs); every rank of a world calls it.

    Args:
        forward: The model, in evaluation mode.
        kind: The task.
        data: The encoded examples, with their name in a progress bar and in an error.
        device: Where the model is.
        world: The ranks that share the items; None for one process.

    Raises:
        NonFiniteOutputs: The logits are not finite.
    """
    features, title = data.features, data.name
    rank, ranks = (world.rank, world.size) if world else (0, 1)
    # Each rank computes the logits of its share of the items.
    mine: list[tuple[NDArray, HostCopy]] = []
    with Progress(title=title, total=len(features), unit="example", is_main=rank == 0) as progress:
        for batch in kind.batcher(features, rank=rank, world_size=ranks).all():
            on_device = batch.to(device)
            output = forward(on_device.inputs, on_device.label_positions_M)
            # The copy is under way while the next micro-batch is launched; the host waits after the last one.
            mine.append((batch.items, HostCopy(output.detach().float())))
            progress.advance(len(batch.items) * ranks, is_reported=False)
    # Packing mixes the items: put the rows of each, of shape (rows, outputs), back where the item belongs.
    logits_of_items: list[NDArray] = [np.empty(0)] * len(features)
    arrived = [(items, copy.wait().numpy()[: features.rows[items].sum()]) for items, copy in mine]
    for parts in world.gather(arrived) if world else [arrived]:
        for items, logits in parts:
            if len(items):
                ends = np.cumsum(features.rows[items])[:-1]
                for item, rows in zip(items, np.split(logits, ends), strict=True):
                    logits_of_items[item] = rows
    if not all(np.isfinite(rows).all() for rows in logits_of_items):
        raise NonFiniteOutputs(
            f"{title}: the model's outputs are NaN or infinite: its weights are damaged, or have diverged. Take "
            "another model, or a lower learning_rate."
        )
    return logits_of_items


MOST_SKIPS = 10
"""Consecutive non-finite steps after which a fine-tuning ends. A pre-training returns to a checkpoint instead
(`training.recovery.rollback`): it takes days, has other data to go on with, and may use a dynamic loss scale."""
MEASURED_STEPS = 5
"""Steps whose time an estimate takes."""
LOG_LINES = 10
"""Lines of progress in the log of a fine-tuning."""


class NonFiniteSteps(DataError):
    """A training has diverged: too many steps in a row were skipped. Every rank skips the same, and raises it alike."""


@dataclass(kw_only=True)
class TrainingSummary:
    """How the training of one seed went."""

    score: float = -math.inf
    """Best mean of the task's metrics on the first evaluation set."""
    best_step: int = 0
    """Step after which the best score was reached."""
    steps: int = 0
    """Steps made; fewer than planned after early stopping."""
    train_examples: int = 0
    """Examples seen, repetitions counted."""
    train_s: float = 0.0
    """Seconds of training, without evaluations."""
    train_cpu_s: float = 0.0
    """Processor seconds of rank 0 during training, the steadier measure on a shared machine."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """Step and metrics of each evaluation."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, and the examples trained on per second."""
        rates = {"examples_per_s": self.train_s, "examples_per_cpu_s": self.train_cpu_s}
        return asdict(self) | {name: self.train_examples / max(seconds, 1e-9) for name, seconds in rates.items()}


@dataclass
class TaskTrainer:
    """Trains a task's model. ``run`` starts from the engine's present weights and leaves the best ones there."""

    engine: Engine
    kind: TaskKind
    train: Batcher
    evaluation: Sequence[EvaluationSet]
    """Sets to score; the first one picks the best weights."""
    world: World
    skips: int = 0
    """Steps in a row that were skipped."""

    def run(self, seed: int, folder: Path) -> tuple[TrainingSummary, Evaluation]:
        """Train with one seed, and write its metrics to ``folder``.

        Returns:
            How it went, and the evaluation of the first set with the best weights.

        Raises:
            NonFiniteSteps, NonFiniteOutputs: It diverged.
        """
        self.skips = 0  # an earlier seed's do not count
        config, world, data = self.kind.config, self.world, self.evaluation[0]
        per_epoch = self.train.steps_per_epoch(config.global_batch_size)
        steps = max(1, math.ceil(config.epochs * per_epoch))
        every = config.evaluate_every_steps or per_epoch
        summary, best = TrainingSummary(), Evaluation(predictions=[], metrics={})
        masters: list[torch.Tensor] = []  # copies of this rank's part of the best weights, in float32
        tags = [f"eval/{name}" for name in self.kind.task.metrics]
        with ExitStack() as stack:
            writer = None  # of rank 0
            if world.is_main:
                writer = stack.enter_context(closing(MetricWriter(folder, resumed_step=0, config=config, scores=tags)))
            progress = stack.enter_context(Progress(title=f"seed {seed}", total=steps, is_main=world.is_main))
            in_vain = 0  # evaluations since the best one: patience ends the training early after this number of them
            while summary.steps < steps and not (config.patience and in_vain >= config.patience):
                summary.steps += 1
                metrics = self._timed_step(summary, seed, steps)
                if writer:
                    writer.write(summary.steps, metrics)
                progress.advance()
                if summary.steps % max(1, steps // LOG_LINES) == 0:
                    rate = summary.train_examples / max(summary.train_s, 1e-9)
                    text = f"loss {metrics['train/loss']:.4f}, {rate:,.0f} examples/s"
                    # The time that the remaining steps take, without evaluations.
                    left_s = (steps - summary.steps) * summary.train_s / summary.steps
                    progress.report(summary.steps, text, left_s=left_s)
                if summary.steps % every == 0 or summary.steps == steps:
                    evaluation = self.evaluate(data)
                    in_vain += 1
                    if self._is_best(summary, evaluation):
                        best, masters, in_vain = evaluation, copy_masters(self.engine), 0
                    row = {f"eval/{name}": value for name, value in evaluation.metrics.items()}
                    if writer:
                        writer.write(summary.steps, row)
                        scores = [f"{name} {in_points(name, value)}" for name, value in evaluation.metrics.items()]
                        logger.info("seed %d: step %d, %s: %s", seed, summary.steps, data.name, ", ".join(scores))
        put_back_masters(self.engine, masters)  # there are some: the last step is always evaluated
        return summary, best

    def measure_step(self, seed: int) -> float:
        """Make a few steps of the training and return the median of their seconds; the weights are not put back."""
        summary, seconds = TrainingSummary(), []
        for _ in range(1 + MEASURED_STEPS):
            before, summary.steps = summary.train_s, summary.steps + 1
            self._timed_step(summary, seed, steps=1 + MEASURED_STEPS)
            seconds.append(summary.train_s - before)
        return statistics.median(seconds[1:])  # the first one also makes room in memory

    def evaluate(self, data: EvaluationSet) -> Evaluation:
        """Score a set with the present weights; every rank calls it and gets the result."""
        with self.engine.evaluating():
            return evaluate(self.engine.forward, self.kind, data, device=self.world.device, world=self.world)

    def _is_best(self, summary: TrainingSummary, evaluation: Evaluation) -> bool:
        """Record an evaluation after the current step; return whether it is the best one so far."""
        summary.history.append({"step": summary.steps, **evaluation.metrics})
        scores = [evaluation.metrics[name] for name in self.kind.task.metrics_in(evaluation.metrics)]
        score = sum(scores) / len(scores)
        if summary.best_step and not score > summary.score:
            return False
        summary.score, summary.best_step = score, summary.steps
        return True

    def _timed_step(self, summary: TrainingSummary, seed: int, steps: int) -> dict[str, float]:
        """Make one step, add its time and its examples to the summary, and return its metrics."""
        config, peak = self.kind.config, self.kind.config.learning_rate
        assert isinstance(peak, float), peak  # `prepare` has resolved auto
        started, cpu_started = time.perf_counter(), time.process_time()
        rate = linear_warmup_decay(summary.steps, steps=steps, warmup_ratio=config.warmup_ratio, peak=peak)
        loss, norm = self._step(summary.steps, seed, rate)
        summary.train_s += time.perf_counter() - started
        summary.train_cpu_s += time.process_time() - cpu_started
        # The last step of an epoch has the examples that are left.
        batch_size = config.global_batch_size
        index = (summary.steps - 1) % self.train.steps_per_epoch(batch_size)
        summary.train_examples += min(batch_size, len(self.train.features) - index * batch_size)
        return {"train/loss": loss, "train/lr": rate, "train/grad_norm": norm}

    def _step(self, step: int, seed: int, rate: float) -> tuple[float, float]:
        """Make a step and return the mean loss and the gradient norm before clipping."""
        batches, terms = self.train.step(step, seed=seed, global_batch_size=self.kind.config.global_batch_size)
        loss_sum = torch.zeros(1, dtype=torch.float64, device=self.world.device)
        for number, batch in enumerate(batches, start=1):
            batch = batch.to(self.world.device)
            logits = self.engine.forward(batch.inputs, batch.label_positions_M)
            loss = self.kind.loss(logits, batch) if batch.inputs.num_instances else empty_loss(logits)
            # The engine averages gradients over the ranks: times their number, divided by the terms of all of them,
            # that is the gradient of the mean over all terms, however these are spread over ranks and micro-steps.
            self.engine.backward(loss * (self.world.size / max(terms, 1)), is_last=number == len(batches))
            loss_sum += loss.detach().double()
        outcome = self.engine.step(StepSettings(lr=rate, bias_step=step), loss_sum)
        mean = float(outcome.totals[0]) / max(terms, 1)
        if outcome.grad_norm is not None:
            self.skips = 0
            return mean, outcome.grad_norm
        # The loss or a gradient was not finite, so no weight has changed.
        self.skips += 1
        if self.world.is_main:
            logger.warning("step %d skipped: loss %s or its gradients are not finite", step, mean)
        if self.skips >= MOST_SKIPS:
            raise NonFiniteSteps(
                f"{MOST_SKIPS} steps in a row up to step {step} had losses or gradients that are not finite. "
                "Lower learning_rate, or train with precision fp32; the weights in model may be damaged."
            )
        return mean, math.inf
