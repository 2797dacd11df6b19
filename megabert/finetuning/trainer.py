"""One seed of a fine-tuning: steps, evaluations, and the best weights."""

import math
import time
from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from megabert.distributed.process_group import World
from megabert.engine.engine import Engine
from megabert.engine.master_weights import copy_masters, put_back_masters
from megabert.errors import DataError
from megabert.finetuning.batches import Batcher
from megabert.finetuning.evaluate import Evaluation, EvaluationSet, evaluate
from megabert.finetuning.model import empty_loss
from megabert.finetuning.scores import in_points
from megabert.finetuning.task_kinds import TaskKind
from megabert.observability.logs import logger
from megabert.observability.metrics import MetricWriter
from megabert.observability.progress import Progress
from megabert.optim import StepSettings, linear_warmup_decay

MAX_SKIPS_IN_A_ROW = 10
"""So many non-finite steps one after another end a fine-tuning."""
LOG_LINES = 10
"""Lines of progress in the log of a fine-tuning."""


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
        """Return the fields, and the examples trained on in a second."""
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
        """
        config = self.kind.config
        an_epoch = self.train.steps_an_epoch(config.global_batch_size)
        steps = max(1, math.ceil(config.epochs * an_epoch))
        every = config.evaluate_every_steps or an_epoch
        summary, best = TrainingSummary(), Evaluation(predictions=[], metrics={})
        masters: list[torch.Tensor] = []  # copies of this rank's part of the best weights, in float32
        shown = Progress(title=f"seed {seed}", total=steps, is_main=self.world.is_main)
        metric_file = closing(self._open_writer(folder)) if self.world.is_main else nullcontext()
        with metric_file as writer, shown as progress:
            while summary.steps < steps:
                # Patience ends the training early: so many evaluations in a row were not better than the best one.
                evaluations_since_best = sum(entry["step"] > summary.best_step for entry in summary.history)
                if config.patience and evaluations_since_best >= config.patience:
                    break
                summary.steps += 1
                metrics = self._timed_step(summary, seed, steps)
                self._log(writer, summary.steps, metrics)
                progress.advance()
                if summary.steps % max(1, steps // LOG_LINES) == 0:
                    self._report(progress, summary, steps, metrics["train/loss"])
                if summary.steps % every == 0 or summary.steps == steps:
                    evaluation = self.evaluate(self.evaluation[0])
                    if self._is_best(summary, evaluation):
                        best, masters = evaluation, copy_masters(self.engine)
                    scores = ", ".join(f"{name} {in_points(name, value)}" for name, value in evaluation.metrics.items())
                    text = f"seed {seed}: step {summary.steps}, {self.evaluation[0].name}: {scores}"
                    row = {f"eval/{name}": value for name, value in evaluation.metrics.items()}
                    self._log(writer, summary.steps, row, text)
        put_back_masters(self.engine, masters)  # there are some: the last step is always evaluated
        return summary, best

    def _open_writer(self, folder: Path) -> MetricWriter:
        scores = [f"eval/{name}" for name in self.kind.task.metrics]
        return MetricWriter(folder, resumed_step=0, config=self.kind.config, scores=scores)

    def evaluate(self, data: EvaluationSet) -> Evaluation:
        """Score a set with the present weights; every rank calls it and gets the result."""
        with self.engine.evaluating():
            return evaluate(self.engine.forward, self.kind, data, device=self.world.device, world=self.world)

    def _is_best(self, summary: TrainingSummary, evaluation: Evaluation) -> bool:
        """Record an evaluation after the current step; return whether it is the best one so far."""
        summary.history.append({"step": summary.steps, **evaluation.metrics})
        # The mean of the task's metrics; tags that are not BIO have their accuracy alone.
        scores = [evaluation.metrics[name] for name in self.kind.task.metrics if name in evaluation.metrics]
        scores = scores or [evaluation.metrics["accuracy"]]
        score = sum(scores) / len(scores)
        if summary.best_step and not score > summary.score:
            return False
        summary.score, summary.best_step = score, summary.steps
        return True

    def _timed_step(self, summary: TrainingSummary, seed: int, steps: int) -> dict[str, float]:
        """Make one step, add its time and its examples to the summary, and return its metrics."""
        config = self.kind.config
        started, cpu_started = time.perf_counter(), time.process_time()
        rate = linear_warmup_decay(
            summary.steps, steps=steps, warmup_ratio=config.warmup_ratio, peak=config.learning_rate
        )
        loss, norm = self._step(summary.steps, seed, rate)
        summary.train_s += time.perf_counter() - started
        summary.train_cpu_s += time.process_time() - cpu_started
        # The last step of an epoch has the examples that are left.
        batch_size = config.global_batch_size
        index = (summary.steps - 1) % self.train.steps_an_epoch(batch_size)
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
        if outcome.grad_norm is None:
            return mean, self._count_skip(step, mean)
        self.skips = 0
        return mean, outcome.grad_norm

    def _count_skip(self, step: int, loss: float) -> float:
        """Count a step whose numbers were not finite, and return the gradient norm to log for it."""
        self.skips += 1
        if self.world.is_main:
            logger.warning("step %d skipped: loss %s or its gradients are not finite", step, loss)
        if self.skips >= MAX_SKIPS_IN_A_ROW:
            raise DataError(
                f"{MAX_SKIPS_IN_A_ROW} steps in a row up to step {step} had losses or gradients that are not finite. "
                "Lower learning_rate, or train with precision fp32; the weights in model may be damaged."
            )
        return math.inf

    def _report(self, progress: Progress, summary: TrainingSummary, steps: int, loss: float) -> None:
        """Show loss, rate, and the time that the remaining steps of this seed take, without evaluations."""
        left_s = (steps - summary.steps) * summary.train_s / summary.steps
        rate = summary.train_examples / max(summary.train_s, 1e-9)
        progress.report(summary.steps, f"loss {loss:.4f}, {rate:,.0f} examples/s", left_s=left_s)

    def _log(self, writer: MetricWriter | None, step: int, row: dict[str, float], text: str = "") -> None:
        """Write a row of metrics, and a line into the log if there is one; only rank 0 has a writer."""
        if writer is not None:
            writer.write(step, row)
            if text:
                logger.info(text)
