"""Triton compiles anew for numbers that 16 does not divide, and for 1: micro-batches of a run must not differ so."""

import pytest
import torch

pytest.importorskip("triton", reason="pip install 'triton>=3.6'")

from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

from megabert.ops.attention.dense.cpu import DenseSequences
from megabert.ops.attention.dense.triton import attention_triton
from megabert.ops.attention.disentangled.cpu import DisentangledSequences, RelativePositions
from megabert.ops.attention.disentangled.triton import disentangled_attention_triton
from megabert.ops.attention.rotary.cpu import RotarySequences
from megabert.ops.attention.rotary.triton import rotary_attention_triton
from megabert.ops.bias_gelu.triton import bias_gelu_triton
from megabert.ops.cross_entropy.triton import cross_entropy_triton
from megabert.ops.dropout import AttentionDropout, Dropout, Heads
from megabert.ops.gated_gelu.triton import gated_gelu_triton
from megabert.ops.layer_norm.triton import layer_norm_triton
from megabert.ops.triton_support.dropout_kernels import dropped_triton, row_keys_triton

WIDTH, HEADS = 128, 2
SIZES = [(16_384, 2_560, 133), (16_512, 2_688, 134), (17_024, 2_704, 128), (131_072, 20_480, 1_040)]
SIZES += [(256, 16, 1), (128, 16, 2), (300, 7, 3), (17, 1, 1)]
"""Tokens, masked positions and sequences: pre-training pads the first two to multiples of 16, fine-tuning does not."""


@pytest.fixture
def variants(monkeypatch):
    """Return for each kernel the set of what it would be compiled for: types, divisibility and constants."""
    found, backend, binders = {}, make_backend(GPUTarget("cuda", 90, 32)), {}

    def run(function, *args, grid, warmup, **options):
        if function not in binders:
            binders[function] = create_function_from_signature(function.signature, function.params, backend)
        _, specialization, _ = binders[function](*args, **options | {"debug": False, "instrumentation_mode": ""})
        found.setdefault(function.fn.__name__, set()).add((str(specialization), str(sorted(options.items()))))

    monkeypatch.setattr(JITFunction, "run", run)
    return found


def meta(*shape, dtype=torch.bfloat16):
    return torch.empty(*shape, dtype=dtype, device="meta", requires_grad=dtype.is_floating_point)


def run_ops(tokens, masked, sequences):
    seeds_T, column = meta(tokens, dtype=torch.int32), meta(WIDTH)
    site = Dropout(0.1, row_keys_triton(seeds_T, 7))
    read = masked + sequences  # rows of the last layer: any number
    site_of_read = Dropout(0.1, row_keys_triton(meta(read, dtype=torch.int32), 7))
    dropped_triton(meta(tokens, WIDTH), site)
    probabilities = AttentionDropout(0.1, meta(sequences, dtype=torch.int32), meta(HEADS, dtype=torch.int32))
    heads = Heads(HEADS, probabilities)
    for rows, dropout in ((tokens, site), (read, site_of_read)):
        x, residual = meta(rows, WIDTH), meta(rows, WIDTH)
        results = layer_norm_triton(x, column, column, column, residual, 1e-12, dropout, False)
        torch.autograd.backward(results, [x, residual])
        bias_gelu_triton(x, column, approximate=False).backward(x)
        gated_gelu_triton(x, approximate=False).backward(meta(rows, WIDTH // 2))
    qkv, cu_seqlens = meta(tokens, 3 * WIDTH), meta(sequences + 1, dtype=torch.int32)
    bias = meta(3 * WIDTH)
    attention_triton(qkv, DenseSequences(cu_seqlens, 128), heads, bias).backward(meta(tokens, WIDTH))
    relative = RelativePositions(meta(255, WIDTH), meta(255, WIDTH), meta(255, dtype=torch.int32))
    disentangled = disentangled_attention_triton(qkv, relative, DisentangledSequences(cu_seqlens, 128), heads)
    disentangled.backward(meta(tokens, WIDTH))
    positions = meta(8192, dtype=torch.int64)
    turns = torch.empty(8192, 2, WIDTH // HEADS // 2, device="meta")
    for reach in (64, None):
        packed = RotarySequences(cu_seqlens, 8192, positions)
        out = rotary_attention_triton(qkv, turns, packed, heads, reach=reach)
        out.backward(meta(tokens, WIDTH))
    cross_entropy_triton(meta(masked, 1024), meta(masked, dtype=torch.int64))[0].sum().backward()


def test_each_kernel_is_compiled_once_for_all_micro_batches(variants):
    run_ops(*SIZES[0])
    first = {name: set(kinds) for name, kinds in variants.items()}
    for size in SIZES[1:]:
        run_ops(*size)
    ops = ("layer_norm", "attention", "bias_gelu", "gated_gelu", "cross_entropy")
    others = {"column_sums_of_partials", "dropout_row_keys", "dropout_tile"}
    assert {f"{op}_backward" for op in ops} | others <= set(variants)
    assert {"rotary_turn", "rotary_attention_backward_keys"} <= set(variants)
    assert {"disentangled_attention_backward_keys", "disentangled_attention_sum_distances"} <= set(variants)
    assert variants == first


@pytest.mark.parametrize("is_full", [True, False])
def test_each_kernel_is_compiled_once_for_all_long_sequences(variants, is_full, monkeypatch):
    monkeypatch.setattr("megabert.ops.attention.dense.triton.fills_card", lambda *_: is_full)
    for longest in (257, 300, 384, 400, 512, 1000):
        qkv, cu_seqlens = meta(longest + 9, 3 * WIDTH), meta(3, dtype=torch.int32)
        out = attention_triton(qkv, DenseSequences(cu_seqlens, longest), Heads(HEADS), meta(3 * WIDTH))
        out.backward(meta(longest + 9, WIDTH))
    assert "attention_delta" in variants
    assert {name: len(kinds) for name, kinds in variants.items()} == dict.fromkeys(variants, 1)


def test_attention_with_relative_positions_is_compiled_once_for_all_lengths_and_tables(variants):
    for longest, rows in ((9, 17), (128, 255), (300, 384), (512, 512), (1000, 512)):
        relative = RelativePositions(meta(rows, WIDTH), meta(rows, WIDTH), meta(2 * longest - 1, dtype=torch.int32))
        packed = DisentangledSequences(meta(3, dtype=torch.int32), longest)
        out = disentangled_attention_triton(meta(longest + 9, 3 * WIDTH), relative, packed, Heads(HEADS))
        out.backward(meta(longest + 9, WIDTH))
    # Sums over distances are of queries and of keys.
    sums = "disentangled_attention_sum_distances"
    assert {name: len(kinds) for name, kinds in variants.items()} == dict.fromkeys(variants, 1) | {sums: 2}


def test_variants_are_seen(variants):
    for width in (3 * WIDTH, 3 * 96):
        attention_triton(meta(256, width), DenseSequences(meta(3, dtype=torch.int32), 128), Heads(HEADS))
    assert len(variants["attention_forward"]) == 2
