"""Accumulation: many micro-steps, uneven and empty ones, equal one large one at every ZeRO stage."""

from itertools import product

import pytest
import torch
from several_ranks.toy_training import batch_of, gather_whole, given_gradients, make_engine
from support.soak import in_soak

from megabert.optim import StepSettings

ENGINES = ("zero0", "zero1", "zero2", "zero3", "bf16_zero1", "bf16_zero2", "bf16_zero3")

ROUNDING = 2**-24
"""Adding a float32 number rounds by this much at most; bfloat16 sums of 256 numbers would lose 2.5e-3 in all."""


@pytest.mark.parametrize(
    ("ranks", "engine", "micro_steps"),
    [(2, "zero1", 16), (2, "zero3", 16), *in_soak(*product((1, 2, 3, 4), ENGINES, (256,)))],
)
def test_many_micro_steps_equal_one(workers, ranks, engine, micro_steps):
    errors = workers(ranks).run(accumulation_errors, engine, micro_steps, timeout_s=280)[0]
    assert max(errors.values()) <= micro_steps * ROUNDING, errors


def accumulation_errors(world, engine_name, micro_steps):
    once = gradients(world, engine_name, micro_steps=1)
    often = gradients(world, engine_name, micro_steps=micro_steps)
    return {name: float((often[name] - g).norm() / g.norm().clamp_min(1e-30)) for name, g in once.items()}


def gradients(world, engine_name, *, micro_steps):
    engine = make_engine(world, engine_name, clip=0.0)
    ids, targets = batch_of(0)
    mine = slice(world.rank, None, world.size)
    for _ in range(micro_steps):
        loss = engine.forward(ids[mine], targets[mine]).loss_sum
        engine.backward(loss * (world.size / ids.numel() / micro_steps))
    return optimizer_gradients(engine, world)


def optimizer_gradients(engine, world):
    """Step, and return the gradients that the optimizer was handed."""
    seen = {}
    engine.optimizer.step = lambda settings: seen.update(given_gradients(engine, settings))
    engine.step(StepSettings(lr=0.0))
    return gather_whole(engine, world, lambda f: seen[f.parameter, f.start])


@pytest.mark.parametrize("engine", ["zero2", "zero3", "bf16_zero1", *in_soak("zero0", "zero1")])
def test_uneven_micro_steps_with_an_empty_first_one_change_nothing(workers, engine):
    # Rank 1 begins with nothing at all, in the very first backward pass of the engine.
    errors = workers(2).run(uneven_errors, engine)[0]
    assert max(errors.values()) <= (1e-2 if engine.startswith("bf16") else 1e-5), errors


def uneven_errors(world, engine_name):
    even = deal(world, engine_name, [(6, 6)])
    uneven = deal(world, engine_name, [(5, 0), (1, 3), (0, 2), (1, 0)])
    return {name: float((uneven[name] - g).norm() / g.norm().clamp_min(1e-30)) for name, g in even.items()}


def deal(world, engine_name, shares):
    engine = make_engine(world, engine_name, clip=0.0)
    ids, targets = batch_of(0)
    first = 0
    for share in shares:
        begin = first + sum(share[: world.rank])
        rows = slice(begin, begin + share[world.rank])
        first += sum(share)
        engine.backward(engine.forward(ids[rows], targets[rows]).loss_sum * (world.size / ids.numel()))
    assert first == len(ids)
    return optimizer_gradients(engine, world)


def test_step_returns_the_norm_before_clipping(workers):
    for engine in ("zero0", "zero1", "zero3"):
        norm, seen = workers(2).run(norms, engine)[0]
        assert norm == pytest.approx(seen / 0.125, rel=1e-3)  # clipped to 0.125 of what it was
        assert norm > 1


def norms(world, engine_name):
    free = gradients(world, engine_name, micro_steps=1)
    whole = float(torch.cat(list(free.values())).norm())
    engine = make_engine(world, engine_name, clip=whole / 8)
    ids, targets = batch_of(0)
    mine = slice(world.rank, None, world.size)
    engine.backward(engine.forward(ids[mine], targets[mine]).loss_sum * (world.size / ids.numel()))
    returned = {}
    step = engine.step
    engine.step = lambda settings: returned.setdefault("norm", step(settings).grad_norm)
    seen = optimizer_gradients(engine, world)
    return returned["norm"], float(torch.cat(list(seen.values())).norm())
