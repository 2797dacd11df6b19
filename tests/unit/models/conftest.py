"""Packed micro-batches of random tokens."""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch


def packed(lengths: list[int], *, vocab_size: int, seed: int = 0, padding: int = 0) -> SimpleNamespace:
    """A packed micro-batch of random tokens; one padded sequence and masked position where there is padding."""
    rng = np.random.default_rng(seed)
    real, pads = sum(lengths), [0] * bool(padding)
    offsets = np.concatenate([[0], np.cumsum(lengths + pads)])
    positions = np.concatenate([*map(np.arange, lengths), np.zeros(padding, int)]).astype(np.int64)
    masked = np.sort(rng.choice(real, max(1, real // 6), replace=False)) if real else np.empty(0, np.int64)
    ignored = np.full(int(bool(padding)), -100)
    segments = np.concatenate([*(np.arange(n) >= n // 2 for n in lengths), np.zeros(padding)]).astype(np.int64)
    return SimpleNamespace(
        input_ids_T=torch.from_numpy(rng.integers(0, vocab_size, real + padding)),
        position_ids_T=torch.from_numpy(positions),
        segment_ids_T=torch.from_numpy(segments),
        cu_seqlens=torch.tensor(offsets, dtype=torch.int32),
        masked_positions_M=torch.from_numpy(np.concatenate([masked, ignored * 0]).astype(np.int64)),
        masked_ids_M=torch.from_numpy(np.concatenate([rng.integers(0, vocab_size, len(masked)), ignored])),
        next_sentence_label_B=torch.from_numpy(np.concatenate([rng.integers(0, 2, len(lengths)), ignored])),
        instance_seeds_B=torch.from_numpy(rng.integers(-(2**31), 2**31, len(lengths + pads)).astype(np.int32)),
        max_seqlen=max(lengths, default=1),
        num_tokens=real,
        num_masked=len(masked),
        num_instances=len(lengths),
    )


@pytest.fixture
def make_batch() -> Callable[..., SimpleNamespace]:
    return packed
