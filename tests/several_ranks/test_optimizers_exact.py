"""LAMB, StableAdamW and Muon under ZeRO against float64 references; controls without the table must fail."""

from unittest import mock

import pytest
import torch
from several_ranks import optimizer_reference, toy_training

# Relative error of each parameter after 100 float32 steps, which `make soak` makes; a step rounds at 6e-8.
TOLERANCE = 1e-6
STEPS = 8


@pytest.mark.parametrize(
    ("engine", "variant"),
    [("zero1", "apex"), ("zero2", "nvlamb"), ("bf16_zero1", "stable_adamw"), ("zero3", "muon")],
)
def test_optimizer_under_zero_equals_float64_reference(workers, engine, variant):
    errors = workers(2).run(optimizer_reference.optimizer_errors, engine, variant=variant, steps=STEPS)[0]
    assert max(errors.values()) <= TOLERANCE, errors


@pytest.mark.parametrize("engine", ["zero0", "zero1"])
def test_clipping_before_lamb_equals_apexs_inside(workers, engine):
    # Ours divides by (norm + 1e-6) / clip, apex by norm / clip.
    errors = workers(1).run(optimizer_reference.clipping_errors, engine, clip=0.1, steps=STEPS)[0]
    assert max(errors.values()) <= TOLERANCE, errors


@pytest.mark.parametrize(("variant", "micro_steps"), [("nvlamb", 1), ("muon_heads", 4)])
def test_optimizer_over_three_ranks_equals_float64_reference(workers, variant, micro_steps):
    options = {"variant": variant, "micro_steps": micro_steps, "steps": STEPS}
    errors = workers(3).run(optimizer_reference.optimizer_errors, "zero1", **options)[0]
    assert max(errors.values()) <= TOLERANCE, errors


@pytest.mark.parametrize("variant", ["stable_adamw", "muon"])
def test_same_gradients_give_the_same_bits_on_every_world_and_stage(workers, variant):
    cells = [(1, "zero0"), (2, "zero2"), (2, "zero3"), (2, "bf16_zero1"), (3, "zero1")]
    masters = [
        workers(n).run(optimizer_reference.masters_after_given_gradients, engine, variant=variant)[0]
        for n, engine in cells
    ]
    for cell, others in zip(cells, masters, strict=True):
        assert [name for name in others if not torch.equal(others[name], masters[0][name])] == [], cell


@pytest.mark.parametrize(("engine", "variant"), [("zero3", "nvlamb"), ("zero1", "stable_adamw")])
def test_stock_lamb_under_zero_fails_the_same_test(workers, engine, variant):
    errors = workers(2).run(optimizer_reference.optimizer_errors, engine, variant=variant, steps=20, attached=False)[0]
    for name in ("gain_bias", "pair", "dense.weight"):  # each alone, or nearly so, in one rank's partition of a bucket
        errors.pop(name)
    # StableAdamW shortens no step of some parameters, whose mean then does not matter.
    assert (max if variant == "stable_adamw" else min)(errors.values()) > 100 * TOLERANCE, errors


def test_muon_in_16_bits_is_near_the_float64_reference(workers):
    errors = workers(2).run(optimizer_reference.optimizer_errors, "zero1", variant="muon_bf16", steps=STEPS)[0]
    assert max(errors.values()) <= 5e-3, errors


def test_muon_sends_eight_bytes_for_an_element_that_is_not_on_its_owner(workers):
    results = workers(3).run(muon_traffic)
    for sent, expected in results:
        assert sent == expected
    assert sum(sent for sent, _ in results) > 0
    assert workers(1).run(muon_traffic) == [(0, 0)]


def muon_traffic(world):
    """Return the bytes that this rank sent in a step, and 4 for each element lent to an owner or returned by it."""
    engine = toy_training.make_engine(world, "zero1", optimizer="muon", clip=0.0)
    counted, exchange = [], type(world).exchange

    def counting(self, outgoing, sent, received):
        assert sent[world.rank] == received[world.rank] == 0
        counted.append(4 * outgoing.numel())
        return exchange(self, outgoing, sent, received)

    with mock.patch.object(type(world), "exchange", counting):
        toy_training.train_step(engine, world, 1)
    by_rank = world.gather({(f.parameter, f.start): f.numel for f in engine.fragments})
    expected = 0
    for name in toy_training.MATRICES:
        numels = [sum(numel for (parameter, _), numel in held.items() if parameter == name) for held in by_rank]
        owner = numels.index(max(numels))
        expected += 4 * (sum(numels) - numels[owner] if owner == world.rank else numels[world.rank])
    return sum(counted), expected
