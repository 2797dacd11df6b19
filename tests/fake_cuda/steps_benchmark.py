"""The GPU benchmark's step, which it captures as one CUDA graph: nothing in it may wait, or travel to the host."""

from unittest import mock

import pytest
import torch
from fake_cuda.fake_gpu import CUDA, fake_gpu, made_in
from fake_cuda.watch import Seen, Watch
from support.soak import in_soak

from benchmarks.gpu import training
from benchmarks.gpu.batches import random_batch
from benchmarks.gpu.sizes import TINY
from megabert.models.bert import BertForPreTraining

WARM_UP = 3
"""Steps before a capture: what they leave on the device (tables, constants) need not be copied again."""


def random_model(config, ops, device, **_):
    """Stand in for the benchmark's, whose weights are rounded when they have been made: fake tensors refuse that."""
    model = made_in(torch.bfloat16, lambda: BertForPreTraining(config, ops=ops))
    model.to = lambda dtype: model
    return model


def step_of_graph(length: int) -> Seen:
    """Return what was seen in the step that would be captured."""
    watch = Watch()
    batch = random_batch(1024, length, TINY.vocabulary, 0)
    with fake_gpu(watch, 1), mock.patch.object(training, "random_model", random_model), watch:
        step = training.MegabertStep(
            training.model_config(TINY), batch, backend="triton", device=CUDA, dtype=torch.bfloat16
        )
        for _ in range(WARM_UP):
            step.eager()
        watch.seen = Seen()
        step.eager()
    return watch.seen


@pytest.mark.parametrize("length", [512, *in_soak(128)])
def test_nothing_crosses_between_devices_in_a_captured_step(length):
    seen = step_of_graph(length)
    assert dict(seen.faults) == {}
    assert dict(seen.async_copies) == {}
    assert seen.copies_to_host == seen.stream_waits == 0
    assert {"attention_backward", "layer_norm_backward", "lamb_update", "lamb_apply"} <= set(seen.kernels)
