"""What a validation of pre-training does on a GPU: the host waits once, at its end, and weights arrive before use."""

import pytest
from fake_cuda.fake_gpu import ALIKE, BATCH_TENSORS
from fake_cuda.fake_step import VALIDATION_BATCHES, validations
from support.soak import in_soak

COUNTS = 1
"""The counts of the held-out instances travel to the device once, at the end."""


@pytest.mark.parametrize("family", ["bert", "deberta-v3", *in_soak("albert", "modernbert", *ALIKE)])
def test_second_validation_waits_once_and_nothing_races(family):
    seen = validations(family=family, world_size=2)[1]
    assert dict(seen.faults) == {}
    assert seen.copies_to_host == 1
    assert seen.launches_before_waits == [seen.kernels.total()]
    assert seen.stream_waits == 0
    assert dict(seen.async_copies) == {"copy from the host": BATCH_TENSORS * VALIDATION_BATCHES + COUNTS}
    assert dict(seen.collectives) == {}
    assert seen.kernels["layer_norm_forward"]
    assert not seen.kernels["layer_norm_backward"]
