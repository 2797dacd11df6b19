"""Launches of kernels at sizes that no test can run, recorded on meta tensors."""

import pytest
import torch

pytest.importorskip("triton")

from triton.runtime.jit import JITFunction
from unit.ops.test_specialization import meta, run_ops

from megabert.observability.flops import fp8_work
from megabert.ops import fp8
from megabert.ops.attention.dense.cpu import DenseSequences
from megabert.ops.attention.dense.triton import attention_triton
from megabert.ops.attention.disentangled import triton as disentangled
from megabert.ops.attention.disentangled.cpu import DisentangledSequences, RelativePositions
from megabert.ops.attention.rotary.cpu import RotarySequences
from megabert.ops.attention.rotary.triton import rotary_attention_triton
from megabert.ops.bias_gelu.triton import bias_gelu_triton
from megabert.ops.dense import dense
from megabert.ops.dropout import Heads
from megabert.ops.layer_norm.triton import layer_norm_triton
from megabert.ops.triton_support import tile_sizes
from megabert.settings.config.model import ModelConfig

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


def run_layers(layers: int) -> None:
    """Run BERT-Large's layers in 8 bits, but for attention and dropout, forward and backward."""
    x, gain = meta(32_768, 1024), meta(1024)
    y, residual = layer_norm_triton(dense(x, meta(1024, 1024), in_fp8=True), gain, gain, gain, x, 1e-12, None, False)
    for _ in range(layers):
        context = dense(y, meta(3072, 1024), in_fp8=True)[:, :1024] * 2  # stands for attention
        out = dense(context, meta(1024, 1024), in_fp8=True)
        y, residual = layer_norm_triton(out, gain, gain, gain, residual, 1e-12, None, False)
        inner = bias_gelu_triton(dense(y, meta(4096, 1024), in_fp8=True), meta(4096), approximate=False)
        out = dense(inner, meta(1024, 4096), in_fp8=True)
        y, residual = layer_norm_triton(out, gain, gain, gain, residual, 1e-12, None, False)
    (y + residual).sum().backward()


def mb_of_casts(monkeypatch, *, layers: int) -> dict[str, float]:
    """Return the megabytes that casts of activations and gradients move in layers as BERT-Large's, 32,768 tokens.

    LayerNorm and GELU only write them. A cast by a kernel of its own reads 2 bytes for each that it writes.
    """
    moved, cast_factor = {"ride": 0.0, "own": 0.0}, fp8.cast_factor

    def launch(kernel, *given, **options):
        moved["ride"] += sum(one.nbytes for one in given if getattr(one, "dtype", None) == fp8.TYPE) / 1e6

    def cast(rows, *dtype):
        moved["own"] += 3 * rows.numel() * (rows.shape[0] == 32_768) / 1e6
        return cast_factor(rows, *dtype)

    with monkeypatch.context() as patched:
        patched.setattr(JITFunction, "run", launch)
        patched.setattr(fp8, "cast_factor", cast)
        run_layers(layers)
    return moved


def test_casts_of_a_layer_are_mostly_written_by_kernels_that_have_the_rows(monkeypatch):
    one, two = (mb_of_casts(monkeypatch, layers=layers) for layers in (1, 2))
    in_a_layer = {kind: round(two[kind] - one[kind], 1) for kind in one}
    assert in_a_layer == {"ride": 402.7, "own": 402.7}
    _, planned = fp8_work(ModelConfig(preset="large", num_hidden_layers=1), tokens=32_768)
    assert sum(in_a_layer.values()) == pytest.approx(planned / 1e6, rel=1e-3)
    # In two steps all eight factors would be read again: three bytes for each number.
    monkeypatch.setattr(fp8, "product_before", lambda x: None)
    one, two = (mb_of_casts(monkeypatch, layers=layers) for layers in (1, 2))
    assert {kind: round(two[kind] - one[kind], 1) for kind in one} == {"ride": 0, "own": 1610.6}
