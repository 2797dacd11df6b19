"""What fine-tuning does on a GPU: the host waits once in a step, and once after an evaluation's last launch."""

import pytest
from fake_cuda.fake_finetuning import MICRO_STEPS, finetuning
from fake_cuda.fake_gpu import BATCH_TENSORS, FAMILIES
from support.soak import in_soak

LABELS = {"tagging": 2}
"""Tensors that a micro-batch has in addition to pre-training's, if not one: tags have positions."""
TASKS = [
    ("classification", "deberta-v3", 1),
    ("squad", "modernbert", 2),
    ("tagging", "bert", 1),
    ("swag", "bert", 1),
    *in_soak(("squad", "bert", 1), *(("classification", family, 1) for family in FAMILIES if family != "deberta-v3")),
]


@pytest.mark.parametrize(("task", "family", "stage"), TASKS)
def test_second_epoch_waits_at_its_ends_and_nothing_races(task, family, stage):
    steps, evaluations = finetuning(task, family=family, world_size=2, stage=stage)
    step, evaluation = steps[1], evaluations[1]
    copies = {"copy from the host": (BATCH_TENSORS + LABELS.get(task, 1)) * MICRO_STEPS}
    for seen, number in ((step, 1), (evaluation, MICRO_STEPS)):
        assert dict(seen.faults) == {}
        assert dict(seen.async_copies) == copies
        assert seen.copies_to_host == number
        assert seen.launches_before_waits == [seen.kernels.total()] * number
    assert step.kernels == steps[0].kernels
    assert len(step.hook_threads) == 1
    assert not evaluation.kernels["layer_norm_backward"]
