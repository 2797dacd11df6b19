"""Batches go to a GPU from page-locked memory and without waiting; a stand-in for torch's copy says how."""

import numpy as np
import pytest
import torch

from megabert.data.batch import probe_batch
from megabert.downstream.finetuning.batches import TaskBatch

CUDA = torch.device("cuda")


@pytest.fixture
def copies(monkeypatch):
    """Return how each tensor that is sent to a GPU was copied."""
    pinned, sent = [], []

    def pin(tensor):
        copy = tensor.clone()
        pinned.append(copy)
        return copy

    def to(tensor, device, *, non_blocking=False):
        sent.append((any(tensor is other for other in pinned), non_blocking))
        return tensor

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    monkeypatch.setattr(torch.Tensor, "to", to)
    return sent


def test_host_waits_for_no_copy_of_a_batch(copies):
    probe_batch(tokens=20, length=10).to(CUDA)
    assert copies == [(True, True)] * 8


def test_host_waits_for_no_copy_of_labels(copies):
    inputs = probe_batch(tokens=20, length=10)
    TaskBatch(inputs, torch.zeros(2), torch.zeros(2, dtype=torch.int64), np.arange(2)).to(CUDA)
    assert copies == [(True, True)] * 10
