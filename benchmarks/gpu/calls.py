"""One call of each kernel that `tuning` times, forward or backward, with inputs for it."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.attention_inputs import packed_attention, packed_disentangled_attention
from benchmarks.gpu.sizes import Sizes
from megabert.ops.attention.rotary.api import plan_rotary_attention, rotary_attention, turns_of
from megabert.ops.bias_gelu.api import bias_gelu
from megabert.ops.cross_entropy.api import cross_entropy
from megabert.ops.dropout import ATTENTION_OUTPUT
from megabert.ops.lamb import Coefficients, SlotFragment, lamb_passes
from megabert.ops.layer_norm.api import layer_norm
from megabert.ops.proof.inputs import boundaries, dropout_stream, packed_positions

Call = Callable[[], Any]


def backward_of(out: Tensor, leaves: Sequence[Tensor]) -> Call:
    """Return the backward pass alone."""
    gradient = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, leaves, gradient, retain_graph=True)


def attention_call(sizes: Sizes, device: torch.device, *, place: int, is_backward: bool) -> Call:
    """Return attention at the length in that place of ``sizes.lengths``."""
    op, qkv = packed_attention(sizes, sizes.lengths[place], device, "auto")
    return backward_of(op(qkv), [qkv]) if is_backward else functools.partial(op, qkv)


def rotary_call(sizes: Sizes, device: torch.device, *, has_window: bool, is_backward: bool) -> Call:
    """Return ModernBERT's attention at the longest length, without dropout."""
    length, heads = sizes.rotary_lengths[-1], sizes.rotary_heads
    count, head_width = max(1, sizes.tokens // length), sizes.hidden // sizes.heads
    lengths = [length] * count
    sequences = plan_rotary_attention(
        boundaries(lengths, device),
        packed_positions(lengths, count * length, device),
        max_seqlen=length,
        num_heads=heads,
        reach=sizes.reach,
    )
    turns = turns_of(sequences.positions_P, 10_000.0, head_width)
    qkv = torch.randn(count * length, 3 * heads * head_width, device=device).bfloat16().requires_grad_()
    options: dict[str, Any] = {"reach": sizes.reach if has_window else None, "num_heads": heads}
    op = functools.partial(rotary_attention, qkv, turns, sequences, **options)
    return backward_of(op(), [qkv]) if is_backward else op


def disentangled_call(sizes: Sizes, device: torch.device, *, is_backward: bool) -> Call:
    """Return DeBERTa's attention at the longest length."""
    op, leaves = packed_disentangled_attention(sizes, sizes.disentangled_lengths[-1], device, "auto")
    return backward_of(op(*leaves), leaves) if is_backward else functools.partial(op, *leaves)


def layer_norm_call(sizes: Sizes, device: torch.device, *, is_backward: bool) -> Call:
    """Return LayerNorm with all it fuses."""
    tokens, width = sizes.tokens, sizes.hidden
    site = dropout_stream([tokens], tokens, device).site(0, ATTENTION_OUTPUT, 0.1)
    x, residual, weight, bias, input_bias = leaves = [
        torch.randn(*shape, device=device).bfloat16().requires_grad_()
        for shape in ((tokens, width), (tokens, width), (width,), (width,), (width,))
    ]
    options: dict[str, Any] = {"input_bias_D": input_bias, "residual_TD": residual, "dropout": site}

    def op() -> Tensor:
        return layer_norm(x, weight, bias, eps=1e-12, **options)[0]

    return backward_of(op(), leaves) if is_backward else op


def bias_gelu_call(sizes: Sizes, device: torch.device, *, is_backward: bool) -> Call:
    """Return GELU with its bias."""
    x = torch.randn(sizes.tokens, sizes.intermediate, device=device).bfloat16().requires_grad_()
    bias = torch.randn(sizes.intermediate, device=device).bfloat16().requires_grad_()
    return backward_of(bias_gelu(x, bias), [x, bias]) if is_backward else functools.partial(bias_gelu, x, bias)


def cross_entropy_call(sizes: Sizes, device: torch.device) -> Call:
    """Return the loss over the vocabulary and its gradient, one after the other."""
    rows, classes = max(8, sizes.tokens // 8), -(-sizes.vocabulary // 64) * 64
    logits = torch.randn(rows, classes, device=device).bfloat16().requires_grad_()
    labels = torch.randint(0, sizes.vocabulary, (rows,), device=device)
    return lambda: torch.autograd.grad(cross_entropy(logits, labels)[0], logits)


def lamb_call(sizes: Sizes, device: torch.device) -> Call:
    """Return both passes over one flat of a few large parameters."""
    numel = sizes.lamb_numel
    flats = [torch.rand(numel, device=device) for _ in range(4)]
    fragments = [
        SlotFragment(begin, min(1 << 22, numel - begin), i) for i, begin in enumerate(range(0, numel, 1 << 22))
    ]
    squares = torch.zeros(2, len(fragments), dtype=torch.float64, device=device)
    scales = torch.full((len(fragments),), -1e-9, dtype=torch.float64, device=device)
    coefficients = Coefficients(beta1=0.9, beta2=0.999, eps=1e-6, weight_decay=0.01)

    def run() -> None:
        passes = lamb_passes("auto", device.type)
        passes.compute_update(*flats, coefficients=coefficients, fragments=fragments, squares=squares)
        passes.apply_update(flats[0], flats[1], fragments=fragments, scales=scales)

    return run
