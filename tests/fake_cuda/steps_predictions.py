"""Counts that ``python -m benchmarks.predictions`` uses: one more layer adds exactly its products and its bytes."""

import pytest

from benchmarks.predictions.counts import IN_FP8, by_part, step_work
from megabert.observability.flops import fp8_work
from megabert.settings.config.model import ModelConfig

TOKENS, HIDDEN, INTERMEDIATE = 2048, 128, 384
MODEL = {
    "family": "modernbert", "hidden_size": HIDDEN, "num_attention_heads": 2, "intermediate_size": INTERMEDIATE,
    "vocab_size": 500,
}  # fmt: skip
STEP = {"tokens": TOKENS, "length": 512, "multiprocessors": 132}


def test_one_more_layer_adds_its_products_and_sixteen_hidden_and_eight_intermediate_widths():
    flops, moved = [], []
    for layers in (2, 3):
        work, _ = step_work(MODEL | {"num_hidden_layers": layers}, **STEP, micro_steps=8, capability=(9, 0))
        flops.append(by_part(work, "flops")["matrix products"])
        elementwise = ("layer_norm_forward", "layer_norm_backward", "gated_gelu_forward", "gated_gelu_backward")
        moved.append(sum(each.bytes for label, each in work.items() if label.name in elementwise))
    weights = 4 * HIDDEN**2 + 3 * HIDDEN * INTERMEDIATE
    assert flops[1] - flops[0] == 8 * 6 * TOKENS * weights
    expected = 8 * 2 * TOKENS * (16 * HIDDEN + 8 * INTERMEDIATE)
    assert moved[1] - moved[0] == pytest.approx(expected, rel=0.03)  # and statistics and partial sums


def test_in_8_bits_one_more_layer_adds_two_thirds_of_its_products_and_casts_its_weights_once_a_step():
    flops, casts = [], []
    for layers in (2, 3):
        sizes = MODEL | {"num_hidden_layers": layers}
        work, _ = step_work(sizes, **STEP, micro_steps=8, capability=(9, 0), in_fp8=True)
        flops.append(sum(each.flops for label, each in work.items() if label.name == IN_FP8))
        casts.append(by_part(work, "bytes")["casts"])
    weights = 4 * HIDDEN**2 + 3 * HIDDEN * INTERMEDIATE
    assert flops[1] - flops[0] == 8 * 4 * TOKENS * weights
    assert flops[1] - flops[0] == fp8_work(ModelConfig(**MODEL, num_hidden_layers=1), tokens=8 * TOKENS)[0]
    of_attention = 8 * 3 * TOKENS * (HIDDEN + 3 * HIDDEN)  # its output, and the gradients of queries, keys and values
    assert casts[1] - casts[0] == pytest.approx(of_attention + 2 * 3 * weights, rel=0.03)  # and scales
