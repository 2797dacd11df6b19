"""The loop of a fine-tuning: which weights are kept, when it stops, what it does about numbers that are none."""

import contextlib
import math
import random
from types import SimpleNamespace

import pytest
import torch
from unit.downstream.finetuning.conftest import batcher_of
from unit.downstream.finetuning.test_task_kinds import labelled

from megabert.distributed.process_group import distributed_world
from megabert.downstream.finetuning.model import TaskModel
from megabert.downstream.finetuning.trainer import Evaluation, TaskTrainer
from megabert.engine.engine import UpdateResult
from megabert.foundation.errors import DataError
from megabert.models.build import initialize
from megabert.observability.metrics import read_metrics
from megabert.optim import Fragment, build_optimizer
from megabert.settings.config.run import OptimizerConfig


class PlainEngine:
    """An engine of one rank without DeepSpeed."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.module = model
        self.optimizer = build_optimizer(model.named_parameters(), OptimizerConfig(name="adamw"))
        self.fragments = [Fragment(p.data, 0, name, 0, p.numel()) for name, p in model.named_parameters()]
        self.is_bad = False

    def forward(self, *inputs):
        return self.module(*inputs)

    def backward(self, loss, *, is_last):
        loss.backward()

    def step(self, settings, sums):
        if not self.is_bad:
            self.optimizer.step(settings)
        self.module.zero_grad()
        return UpdateResult(totals=sums, grad_norm=None if self.is_bad else 1.0)

    def refresh(self):
        pass

    def evaluating(self):
        return contextlib.nullcontext()


@pytest.fixture(scope="module")
def world():
    with distributed_world("cpu") as world:
        yield world


@pytest.fixture
def fitting(make_kind, model_config, world, monkeypatch):
    """Return a function that makes a fitting whose evaluations score as told."""

    def make(scores, **settings):
        kind = make_kind("rte", ("no", "yes"), global_batch_size=16, **settings)
        features = kind.encode(labelled(random.Random(1)), is_training=True)
        model = TaskModel(model_config, head=kind.head, num_outputs=2)
        initialize(model, 1)
        engine = PlainEngine(model)
        data = SimpleNamespace(name="dev")
        fitting = TaskTrainer(engine=engine, kind=kind, train=batcher_of(features), evaluation=[data], world=world)
        seen = []

        def evaluate(_):
            seen.append(model.classifier.weight.detach().clone())
            return Evaluation(predictions=[], metrics={"accuracy": scores[len(seen) - 1]})

        monkeypatch.setattr(fitting, "evaluate", evaluate)
        return fitting, engine, seen

    return make


def test_best_weights_are_left_in_the_engine(fitting, tmp_path):
    run, engine, seen = fitting([0.5, 0.9, 0.7], epochs=3)
    result, best = run.run(5, tmp_path)
    assert (result.score, result.best_step, result.steps) == (0.9, 6, 9)
    assert best.metrics == {"accuracy": 0.9}
    assert torch.equal(engine.module.classifier.weight, seen[1])
    assert not torch.equal(seen[1], seen[2])
    assert [row["accuracy"] for row in result.history] == [0.5, 0.9, 0.7]
    assert result.train_examples == 3 * 48
    rows = read_metrics(tmp_path)
    assert [row["step"] for row in rows if "train/loss" in row] == [*range(1, 10)]


def test_patience_ends_a_training_that_does_not_get_better(fitting, tmp_path):
    run, _, seen = fitting([0.5, 0.9, 0.9, 0.8, 1.0], epochs=5, patience=2)
    result, _ = run.run(5, tmp_path)
    assert (result.steps, result.best_step, len(seen)) == (12, 6, 4)


def test_evaluations_may_fall_between_epochs(fitting, tmp_path):
    run, _, _ = fitting([0.1] * 9, epochs=1.5, evaluate_every_steps=2)
    assert [row["step"] for row in run.run(5, tmp_path)[0].history] == [2, 4, 5]


def test_steps_that_are_not_finite_are_skipped_and_then_end_it(fitting, tmp_path):
    run, engine, _ = fitting([0.5] * 9, epochs=9)
    before = engine.module.classifier.weight.detach().clone()
    engine.is_bad = True
    with pytest.raises(DataError, match=r"10 steps in a row up to step 10 .* Lower learning_rate"):
        run.run(5, tmp_path)
    with pytest.raises(DataError, match="10 steps in a row up to step 10 "):
        run.run(6, tmp_path)
    assert torch.equal(engine.module.classifier.weight, before)
    assert all(row["train/grad_norm"] == math.inf for row in read_metrics(tmp_path) if "train/loss" in row)
