"""One fine-tuning: steps, evaluations, the best weights."""

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from megabert.config.finetune import FinetuneConfig
from megabert.data.batch import MicroBatch
from megabert.distributed.collectives import sum_over_ranks
from megabert.distributed.process_group import World
from megabert.engine.engine import Engine
from megabert.engine.master_weights import copy_masters, put_back_masters
from megabert.errors import DataError
from megabert.finetuning.batches import Batcher, TaskBatch
from megabert.finetuning.evaluate import Evaluation, EvaluationSet, evaluate, mean_score
from megabert.finetuning.families import Family
from megabert.finetuning.model import empty_loss
from megabert.observability.logs import logger
from megabert.observability.metrics import MetricWriter
from megabert.optim import linear_warmup_decay

MAX_SKIPS_IN_A_ROW = 10
"""Non-finite steps one after another that end a fine-tuning."""
LOG_LINES = 10
"""Lines of progress in a fine-tuning."""


@dataclass(frozen=True, kw_only=True)
class FitResult:
    """How one fine-tuning went."""

    score: float
    """Best mean of the task's metrics on the first evaluation set."""
    best_step: int
    steps: int
    """Steps made; fewer than planned after early stopping."""
    train_examples: int
    """Examples seen, repetitions counted."""
    train_s: float
    """Seconds of training, without evaluations."""
    train_cpu_s: float
    """Processor seconds of rank 0 in them: on a shared machine the steadier measure."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """Step and metrics of each evaluation."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, and examples a second."""
        rates = {"examples_per_s": self.train_s, "examples_per_cpu_s": self.train_cpu_s}
        return asdict(self) | {name: self.train_examples / max(seconds, 1e-9) for name, seconds in rates.items()}


@dataclass
class _Course:
    """What the evaluations have shown so far."""

    history: list[dict[str, Any]] = field(default_factory=list)
    best_score: float = -math.inf
    best_step: int = 0
    best: Evaluation | None = None
    best_masters: list[torch.Tensor] = field(default_factory=list)
    since_best: int = 0
    """Evaluations since the best one."""

    def note(self, step: int, found: Evaluation, score: float, engine: Engine) -> None:
        self.since_best += 1
        if self.best is None or score > self.best_score:
            self.best_score, self.best_step, self.best = score, step, found
            self.best_masters = copy_masters(engine)
            self.since_best = 0
        self.history.append({"step": step, **found.metrics})


@dataclass
class Fitting:
    """The parts of a fine-tuning; ``run`` trains from the engine's present weights and leaves the best ones there."""

    config: FinetuneConfig
    engine: Engine
    family: Family
    train: Batcher
    evaluation: Sequence[EvaluationSet]
    world: World
    skips: int = 0

    def run(self, seed: int, folder: Path) -> tuple[FitResult, Evaluation]:
        """Train with one seed; metrics go to ``folder``. Return also what the first set gave with the best weights."""
        config, batch_size = self.config, self.config.global_batch_size
        an_epoch = self.train.steps_an_epoch(batch_size)
        steps = max(1, math.ceil(config.epochs * an_epoch))
        every = config.evaluate_every_steps or an_epoch
        writer = MetricWriter(folder, resumed_step=0) if self.world.is_main else None
        course = _Course()
        step, examples, seconds, cpu_seconds = 0, 0, 0.0, 0.0
        try:
            while step < steps and not (config.patience and course.since_best >= config.patience):
                step += 1
                started, cpu_started = time.perf_counter(), time.process_time()
                rate = linear_warmup_decay(
                    step, steps=steps, warmup_ratio=config.warmup_ratio, peak=config.learning_rate
                )
                loss, norm = self._step(step, seed, rate)
                seconds += time.perf_counter() - started
                cpu_seconds += time.process_time() - cpu_started
                examples += min(batch_size, len(self.train.features) - (step - 1) % an_epoch * batch_size)
                self._tell(writer, seed, step, steps, {"train/loss": loss, "train/lr": rate, "train/grad_norm": norm})
                if step % every and step < steps:
                    continue
                found = self.evaluate(self.evaluation[0])
                course.note(step, found, mean_score(found.metrics, self.family.task.metrics), self.engine)
                self._tell_evaluation(writer, seed, step, found.metrics)
        finally:
            if writer is not None:
                writer.close()
        assert course.best is not None  # the last step is always evaluated
        put_back_masters(self.engine, course.best_masters)
        result = FitResult(
            score=course.best_score,
            best_step=course.best_step,
            steps=step,
            train_examples=examples,
            train_s=seconds,
            train_cpu_s=cpu_seconds,
            history=course.history,
        )
        return result, course.best

    def evaluate(self, data: EvaluationSet) -> Evaluation:
        """Score a set with the present weights; every rank calls it and gets the result."""
        with self.engine.evaluating():
            return evaluate(self._forward, self.family, data, device=self.world.device, gather=self.world.gather)

    def _forward(self, inputs: MicroBatch, label_positions_M: torch.Tensor | None) -> torch.Tensor:
        logits: torch.Tensor = self.engine.forward(inputs, label_positions_M)
        return logits

    def _step(self, step: int, seed: int, rate: float) -> tuple[float, float]:
        """Make a step and return the mean loss and the gradient norm before clipping."""
        batches, terms = self.train.step(step, seed=seed, global_batch_size=self.config.global_batch_size)
        total = torch.zeros(2, dtype=torch.float64, device=self.world.device)
        for batch in batches:
            loss = self._loss(batch)
            self.engine.backward(loss * (self.world.size / max(terms, 1)))
            total[0] += loss.detach().double()
        total[1] = len(self.engine.nonfinite_gradients())
        loss_sum, bad = sum_over_ranks(total).tolist()
        mean = loss_sum / max(terms, 1)
        self.engine.optimizer.lr = rate
        self.engine.optimizer.bias_step = step
        if bad or not math.isfinite(mean):
            self.engine.discard_gradients()
            return mean, self._skipped(step, mean)
        norm = self.engine.step()
        if self.engine.step_was_skipped:
            return mean, self._skipped(step, mean)
        self.skips = 0
        return mean, norm

    def _loss(self, batch: TaskBatch) -> torch.Tensor:
        batch = batch.to(self.world.device)
        logits = self._forward(batch.inputs, batch.label_positions_M)
        return self.family.loss(logits, batch) if batch.inputs.num_instances else empty_loss(logits)

    def _skipped(self, step: int, loss: float) -> float:
        """Count a step whose numbers were not finite."""
        self.skips += 1
        if self.world.is_main:
            logger.warning("step %d skipped: loss %s or its gradients are not finite", step, loss)
        if self.skips >= MAX_SKIPS_IN_A_ROW:
            raise DataError(
                f"{MAX_SKIPS_IN_A_ROW} steps in a row up to step {step} had losses or gradients that are not finite. "
                "Lower learning_rate, or train with precision fp32; the weights in model may be damaged."
            )
        return math.inf

    def _tell(self, writer: MetricWriter | None, seed: int, step: int, steps: int, values: dict[str, float]) -> None:
        if writer is None:
            return
        writer.write(step, values)
        if step % max(1, steps // LOG_LINES) == 0:
            logger.info("seed %d: step %d of %d, loss %.4f", seed, step, steps, values["train/loss"])

    def _tell_evaluation(self, writer: MetricWriter | None, seed: int, step: int, metrics: dict[str, float]) -> None:
        if writer is None:
            return
        writer.write(step, {f"eval/{name}": value for name, value in metrics.items()})
        shown = ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())
        logger.info("seed %d: step %d, %s: %s", seed, step, self.evaluation[0].name, shown)
