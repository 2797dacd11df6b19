"""LAMB at every ZeRO stage against a float64 reference, and stock LAMB as the control that must fail."""

import pytest
from several_ranks import lamb_reference, toy_training

# Relative error of each parameter after 100 float32 steps, which `make soak` makes; a step rounds at 6e-8.
TOLERANCE = 1e-6
STEPS = 30


@pytest.mark.parametrize("engine", ["zero1", "zero2", "zero3", "bf16_zero1"])
def test_lamb_under_zero_equals_float64_reference(workers, engine):
    errors = workers(2).run(lamb_reference.lamb_errors, engine, steps=STEPS)[0]
    assert max(errors.values()) <= TOLERANCE, errors


@pytest.mark.parametrize("variant", ["apex", "paper", "deepspeed"])
def test_lamb_variant_equals_float64_reference(workers, variant):
    errors = workers(2).run(lamb_reference.lamb_errors, "zero1", variant=variant, steps=STEPS)[0]
    assert max(errors.values()) <= TOLERANCE, errors


@pytest.mark.parametrize("engine", ["zero0", "zero1"])
def test_clipping_before_lamb_equals_apexs_inside(workers, engine):
    # Ours divides by (norm + 1e-6) / clip, apex by norm / clip.
    errors = workers(1).run(lamb_reference.clipping_errors, engine, clip=0.1, steps=STEPS)[0]
    assert max(errors.values()) <= TOLERANCE, errors


def test_lamb_over_three_ranks_equals_float64_reference(workers):
    errors = workers(3).run(lamb_reference.lamb_errors, "zero1", steps=STEPS)[0]
    assert max(errors.values()) <= TOLERANCE, errors


@pytest.mark.parametrize("engine", ["zero1", "zero3"])
def test_stock_lamb_under_zero_fails_the_same_test(workers, engine):
    errors = workers(2).run(lamb_reference.lamb_errors, engine, steps=20, attached=False)[0]
    for name in ("gain_bias", "pair", "dense.weight"):  # each alone, or nearly so, in one rank's partition of a bucket
        errors.pop(name)
    assert min(errors.values()) > 100 * TOLERANCE, errors


def test_toy_has_the_awkward_sizes(workers):
    held = workers(3).run(holders)
    ranks = {name: sum(name in names for names, _ in held) for name in held[0][1]}
    assert ranks["embedding.weight"] == 3
    assert ranks["gain_bias"] == 1
    assert all(count >= 1 for count in ranks.values())


def holders(world):
    engine = toy_training.make_engine(world, "zero1")
    assert any(not flat_fragments(engine, flat) for flat in masters(engine)) or world.rank == 0
    return {fragment.parameter for fragment in engine.fragments}, list(engine.shapes)


def masters(engine):
    return [flat for group in engine.optimizer.param_groups for flat in group["params"]]


def flat_fragments(engine, flat):
    return [fragment for fragment in engine.fragments if fragment.flat is flat]


def test_poison_reaches_padding(workers):
    poisoned = workers(2).run(count_poison)
    assert sum(poisoned) > 0


def count_poison(world):
    return lamb_reference.poison_padding(toy_training.make_engine(world, "zero3"))
