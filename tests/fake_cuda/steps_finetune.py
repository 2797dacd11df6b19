"""What fine-tuning does on a GPU: the host waits once in a step, and once after an evaluation's last launch."""

from types import SimpleNamespace

import pytest
import torch
from fake_cuda.fake_finetuning import MICRO_STEPS, finetuning
from fake_cuda.fake_gpu import BATCH_TENSORS, FAMILIES
from support.soak import in_soak
from torch._subclasses.fake_tensor import DataDependentOutputException

from megabert.downstream.finetuning import batches, trainer
from megabert.downstream.finetuning.task_kinds.span import Span
from megabert.engine import engine

LABELS = {"tagging": 2}
"""Tensors that a micro-batch has in addition to pre-training's, if not one: tags have positions."""
TASKS = [
    ("classification", "deberta-v3", 1),
    ("squad", "bert", 1),
    ("squad", "modernbert", 2),
    ("tagging", "bert", 1),
    ("swag", "bert", 1),
    *in_soak(*(("classification", family, 1) for family in FAMILIES if family != "deberta-v3")),
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


def test_labels_that_the_host_waits_for_are_seen(monkeypatch):
    monkeypatch.setattr(batches, "sent_to", lambda device, labels: labels.to(device))
    steps, evaluations = finetuning("classification")
    assert dict(steps[1].faults) == {"blocking copy from the host": MICRO_STEPS}
    assert dict(evaluations[1].faults) == {"blocking copy from the host": MICRO_STEPS}


@pytest.mark.soak
def test_a_length_that_the_host_reads_from_the_device_is_seen(monkeypatch):
    loss = Span.loss

    def of_longest(kind, logits, batch):
        return loss(kind, logits[: int(batch.inputs.cu_seqlens[-1])], batch)

    monkeypatch.setattr(Span, "loss", of_longest)
    with pytest.raises(DataDependentOutputException, match="_local_scalar_dense"):
        finetuning("squad")


@pytest.mark.soak
def test_an_evaluation_that_waits_for_each_batch_is_seen(monkeypatch):
    class Waiting(engine.HostCopy):
        def __init__(self, tensor):
            super().__init__(tensor)
            self.wait()

    monkeypatch.setattr(trainer, "HostCopy", Waiting)
    seen = finetuning("classification")[1][1]
    assert seen.launches_before_waits[0] < seen.kernels.total()


@pytest.mark.soak
def test_logits_that_are_copied_while_the_host_waits_are_seen(monkeypatch):
    def blocking(logits):
        logits.cpu()
        return SimpleNamespace(wait=lambda: torch.ones(logits.shape, device="cpu"))

    monkeypatch.setattr(trainer, "HostCopy", blocking)
    assert dict(finetuning("classification")[1][1].faults) == {"blocking copy to the host": MICRO_STEPS}
