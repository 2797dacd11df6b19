"""What a step sends, counted: docs/distributed.md has the table. ``fake_cuda`` counts how often the host waits."""

import pytest
from several_ranks import counted_training
from support.soak import in_soak

GRADIENTS, WEIGHTS = {"fp32": 4, "bf16": 4}, {"fp32": 4, "bf16": 2}
"""Bytes a parameter of one reduction and of one gathering, on very many ranks: of two ranks, half."""


@pytest.mark.parametrize(
    ("engine", "precision", "scatters"),
    [("bf16_zero1", "bf16", 1), ("zero2", "fp32", None), *in_soak(("zero1", "fp32", 1), ("bf16_zero2", "bf16", None))],
)
def test_step_sends_the_minimum_behind_the_backward_pass(workers, engine, precision, scatters):
    """Stage 1 scatters once however many micro-steps there are, stage 2 in each; both gather once."""
    for micro_steps in (1, 3):
        figures = workers(2).run(counted_training.counted_step, engine, micro_steps)[0]
        rounds = scatters or micro_steps
        least = rounds * GRADIENTS[precision] + WEIGHTS[precision]
        assert least <= figures["many_ranks"] <= least + 0.1
        # Gradients and weights a bucket; norm and losses, then LAMB's squares, which depend on the clipping by that
        # norm.
        buckets = figures["which"]["all_gather"]
        assert buckets > 3
        assert figures["which"] == {"reduce_scatter": rounds * buckets, "all_gather": buckets, "allreduce": 2}


def test_zero0_sums_gradients_once(workers):
    one, three = (workers(2).run(counted_training.counted_step, "zero0", k)[0] for k in (1, 3))
    assert 8 <= three["many_ranks"] <= 8.1
    assert three == one
