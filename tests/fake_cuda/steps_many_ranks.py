"""A step on one of 256 ranks, the others being torch's fake process group: bytes that it keeps and sends.

DeepSpeed's optimizer is a stand-in here too (`fake_gpu`).
"""

import pytest
from fake_cuda.fake_step import MICRO_STEPS, step_of_many_ranks

RANKS = 256
SIZES = {"hidden_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 16, "vocab_size": 30_522}
BYTES_PER_OWN_PARAMETER = 4 + 8 + 4
"""Bytes per parameter of a rank's partition: float32 master, LAMB's moments, sum of gradients."""
TOLERANCE = 0.01
"""Padding of buckets, and a step's small tensors."""


@pytest.mark.parametrize(("stage", "whole", "reduced"), [(1, 2 + 4, 4), (2, 2, 4 * MICRO_STEPS)])
def test_a_rank_of_256_keeps_and_sends_its_share(stage, whole, reduced):
    seen, held, parameters = step_of_many_ranks(SIZES, stage=stage, world_size=RANKS)
    assert dict(seen.faults) == {}
    sent = {name: size / parameters for name, size in seen.bytes_of_collectives.items()}
    assert sent == pytest.approx({"reduce": reduced, "gather": 2}, rel=TOLERANCE)
    assert held / parameters == pytest.approx(whole + BYTES_PER_OWN_PARAMETER / RANKS, rel=TOLERANCE)
