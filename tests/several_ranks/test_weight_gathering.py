"""Weights on their way from other ranks are waited for where a layer first needs them: not later, and not earlier."""

from unittest import mock

import pytest
import torch
import torch.distributed as dist
from several_ranks.counted_training import MODEL, batch_of_share
from several_ranks.toy_training import ENGINES, ds_config

from megabert.engine.engine import build_engine
from megabert.models.build import build_model, initialize
from megabert.optim import StepSettings, build_optimizer
from megabert.settings.config.run import OptimizerConfig
from megabert.training.step import accumulate, update

STEPS = 3


class LateWork:
    """A gathering that arrives when somebody waits for it; until then the weights are NaN."""

    def __init__(self, weights: torch.Tensor, window: torch.Tensor) -> None:
        self.arrived, self.weights = torch.empty_like(weights), weights
        self.work = GATHER(self.arrived, window.clone(), async_op=True)
        weights.fill_(torch.nan)

    def wait(self) -> None:
        self.work.wait()
        self.weights.copy_(self.arrived)


GATHER = dist.all_gather_into_tensor


@pytest.mark.parametrize("engine", ["zero1", "bf16_zero1", "zero2"])
def test_layer_waits_for_its_own_weights(workers, engine):
    losses, seen, expected = workers(2).run(train, engine, is_late=True)[0]
    assert losses == workers(2).run(train, engine, is_late=False)[0][0]
    # The layers of the steps after the first one: what was still NaN when each was called.
    assert seen == expected * (STEPS - 1)
    assert expected[0]  # the first layer ran while weights were on their way...
    assert not expected[-1]
    assert len(set(expected)) == MODEL.num_hidden_layers  # ...and each waited for its own


def test_weights_of_a_layer_that_is_passed_by_are_missed(workers):
    for message in workers(2).run(pass_a_layer_by):
        assert "nobody has waited for their weights" in message


def make(world, engine_name):
    model = build_model(MODEL)
    initialize(model, 3)
    optimizer = build_optimizer(model.named_parameters(), OptimizerConfig())
    stage, precision = ENGINES[engine_name]
    return build_engine(model, optimizer, ds_config(stage, precision, reduce_bucket_size=60_000), world)


def step_of(engine, world, step):
    batch = batch_of_share(world, step, 1)
    return update(engine, batch, accumulate(engine, batch, world), StepSettings(lr=0.01), world)


def train(world, engine_name, *, is_late):
    """Return the losses, what was NaN at each call of a layer after the first step, and what should be, by layer."""
    engine = make(world, engine_name)
    layers, seen = engine.module.bert.encoder.layer, []

    def look(*_) -> None:
        seen.append(frozenset(n for n, p in engine.module.named_parameters() if p.detach().isnan().any()))

    for layer in layers:
        layer.register_forward_pre_hook(look)
    late = (lambda weights, window, async_op: LateWork(weights, window)) if is_late else GATHER
    with mock.patch.object(dist, "all_gather_into_tensor", late):
        losses = [step_of(engine, world, step).losses["loss"] for step in range(STEPS)]
        engine.settle()
    return losses, seen[len(layers) :], [frozenset(names_after(engine, number)) for number in range(len(layers))]


def names_after(engine, number):
    """Yield the parameters of buckets that nobody needs before a layer has ended."""
    later = tuple(f"bert.encoder.layer.{n}." for n in range(number + 1, MODEL.num_hidden_layers))
    for bucket in engine._stage._buckets:
        if all(name.startswith(later) for name in bucket.parameters):
            yield from bucket.parameters


def pass_a_layer_by(world):
    engine = make(world, "zero1")
    step_of(engine, world, 0)
    layer = type(engine.module.bert.encoder.layer[0])
    # What a model would do that reads a layer's weights from outside: no hook runs.
    with mock.patch.object(layer, "__call__", layer.forward), pytest.raises(RuntimeError) as caught:
        step_of(engine, world, 1)
    engine.settle()
    return str(caught.value)
