"""Launches of kernels at sizes that no test can run, recorded on meta tensors."""

import pytest
import torch

pytest.importorskip("triton")

from triton.runtime.jit import JITFunction
from unit.ops.test_specialization import meta, run_ops

from megabert.ops.attention.dense.cpu import DenseSequences
from megabert.ops.attention.dense.triton import attention_triton
from megabert.ops.attention.disentangled import triton as disentangled
from megabert.ops.attention.disentangled.cpu import DisentangledSequences, RelativePositions
from megabert.ops.attention.rotary.cpu import RotarySequences
from megabert.ops.attention.rotary.triton import rotary_attention_triton
from megabert.ops.dropout import Heads
from megabert.ops.triton_support import tile_sizes

MOST_BEYOND_THE_FIRST = 65_535  # CUDA C++ programming guide, technical specifications by compute capability


@pytest.fixture
def launches(monkeypatch):
    """Return (kernel, grid) of every launch; nothing runs."""
    recorded = []
    monkeypatch.setattr(
        JITFunction, "run", lambda kernel, *_, grid, **__: recorded.append((kernel.fn.__name__, tuple(grid)))
    )
    return recorded


def test_grids_of_a_million_tokens_can_be_launched(launches):
    run_ops(1_200_000, 200_000, 9_375)
    assert {"dropout_tile", "bias_gelu_forward", "cross_entropy_backward"} <= {name for name, _ in launches}
    assert [launch for launch in launches if max(launch[1][1:], default=1) > MOST_BEYOND_THE_FIRST] == []


def test_sequences_next_to_a_long_one_launch_as_many_programs_as_they_have_tiles(launches):
    sequences = RotarySequences(meta(40, dtype=torch.int32), 8192, meta(8192, dtype=torch.int64))
    turns = meta(8192, 2, 8, dtype=torch.float32).detach()
    for reach in (64, None):
        out = rotary_attention_triton(meta(16_384, 3 * 64), turns, sequences, Heads(4), reach=reach)
        out.backward(torch.empty_like(out))
    assert {name for name, _ in launches} >= {"rotary_turn", "rotary_attention_backward_keys"}
    # Tiles of 64 tokens each, one more for each sequence; queries, keys and values of 4 heads are turned.
    assert max(grid[0] for _, grid in launches) == (16_384 // 64 + 40) * 3 * 4


@pytest.mark.parametrize("capability", [(8, 0), (9, 0)])
def test_scratch_of_attention_does_not_grow_with_the_longest_sequence(monkeypatch, capability):
    numbers = []
    monkeypatch.setattr(
        JITFunction,
        "run",
        lambda kernel, *given, **_: numbers.append(max(one.numel() for one in given if isinstance(one, torch.Tensor))),
    )
    monkeypatch.setattr(tile_sizes, "ASSUMED", capability)
    tile_sizes.capability_of.cache_clear()
    for length in (512, 8192):
        cu_seqlens = meta(32_768 // length + 1, dtype=torch.int32)
        out = attention_triton(meta(32_768, 3 * 1024), DenseSequences(cu_seqlens, length), Heads(16))
        out.backward(torch.empty_like(out))
    tile_sizes.capability_of.cache_clear()
    assert max(numbers) <= 8 * 32_768 * 1024


@pytest.mark.parametrize("length", [512, 8192])
def test_scratch_of_positions_and_of_scores_is_bounded(monkeypatch, length):
    numbers = []
    monkeypatch.setattr(
        JITFunction,
        "run",
        lambda kernel, *given, **_: numbers.extend(
            one.numel() for one in given if isinstance(one, torch.Tensor) and one.ndim == 3
        ),
    )
    relative = RelativePositions(meta(512, 768), meta(512, 768), meta(2 * length - 1, dtype=torch.int32))
    packed = DisentangledSequences(meta(65_536 // length + 1, dtype=torch.int32), length)
    out = disentangled.disentangled_attention_triton(meta(65_536, 3 * 768), relative, packed, Heads(12))
    out.backward(torch.empty_like(out))
    # One head at a time needs more than the bound in 8,192 columns.
    assert 0 < max(numbers) <= max(disentangled.SCRATCH, 65_536 * length)
