"""One problem for each op and how far a backend is from the float64 reference: for the tests and the GPU benchmark.

||out - reference|| / ||reference|| of the result and of every gradient; random inputs, memory poisoned with NaN before.
"""

# T packed tokens, D hidden, F intermediate, C = 2 * F or 3 * D, M predicted positions, V classes

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from megabert.ops.attention.dense.api import attention
from megabert.ops.attention.dense.cpu import DenseSequences
from megabert.ops.attention.dense.reference import attention_reference
from megabert.ops.attention.dropout import attention_dropout
from megabert.ops.attention.rotary.api import plan_rotary_attention, rotary_attention, turns_of
from megabert.ops.attention.rotary.reference import rotary_attention_reference
from megabert.ops.bias_gelu.api import bias_gelu
from megabert.ops.bias_gelu.reference import bias_gelu_reference
from megabert.ops.cross_entropy.api import cross_entropy
from megabert.ops.cross_entropy.reference import cross_entropy_reference
from megabert.ops.dropout import ATTENTION_OUTPUT, DropoutStream
from megabert.ops.gated_gelu.api import gated_gelu
from megabert.ops.gated_gelu.reference import gated_gelu_reference
from megabert.ops.layer_norm.api import layer_norm
from megabert.ops.layer_norm.reference import layer_norm_reference

TOLERANCE = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 1e-2}
Op = Callable[..., Tensor]


@dataclass(frozen=True)
class Problem:
    """One op on one set of inputs."""

    run: Op
    """Named tensors and ``backend`` -> result."""
    reference: Op
    """Named tensors -> result."""
    tensors: dict[str, Tensor]
    """Float32 inputs that have a gradient; a run rounds them to its dtype."""


def relative_error(value: Tensor, expected: Tensor) -> float:
    """Return ||value - expected|| / ||expected||; NaN in ``value`` gives NaN, which no bound admits."""
    expected = expected.double()
    return float((value.detach().double() - expected).norm() / expected.norm().clamp(min=1e-30))


@contextlib.contextmanager
def poisoned_memory() -> Iterator[None]:
    """Fill what ``torch.empty`` returns with NaN, so that an element which no kernel writes is seen."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def errors(problem: Problem, dtype: torch.dtype, *, backend: str) -> dict[str, float]:
    """Return the relative error of ``out`` and of each input's gradient by name."""
    rounded = {name: tensor.to(dtype) for name, tensor in problem.tensors.items()}
    with poisoned_memory():
        ours = _values_and_gradients(functools.partial(problem.run, backend=backend), rounded)
    exact = {name: tensor.double() for name, tensor in rounded.items()}
    theirs = _values_and_gradients(problem.reference, exact)
    return {name: relative_error(value, theirs[name]) for name, value in ours.items()}


def _values_and_gradients(op: Op, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in tensors.items()}
    out = op(**leaves)
    # the same numbers for both sides: rounded to 16 bits, exact in float64
    generator = torch.Generator(out.device).manual_seed(out.numel())
    grad = torch.randn(out.shape, generator=generator, device=out.device).to(torch.bfloat16)
    out.backward(grad.to(out.dtype))
    return {"out": out.detach()} | {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}


def boundaries(lengths: Sequence[int], device: torch.device) -> Tensor:
    """Return ``cu_seqlens`` of sequences end to end."""
    ends = torch.tensor([0, *lengths], dtype=torch.int64).cumsum(0)
    return ends.to(device=device, dtype=torch.int32)


def positions_of(lengths: Sequence[int], tokens: int, device: torch.device) -> Tensor:
    """Return each token's position in its sequence, 0 for tokens past the last one."""
    positions = torch.zeros(tokens, dtype=torch.int64)
    positions[: sum(lengths)] = torch.cat([torch.arange(length) for length in lengths])
    return positions.to(device)


def dropout_stream(lengths: Sequence[int], tokens: int, device: torch.device) -> DropoutStream:
    """Return the random numbers of sequences of these lengths; tokens past them are padding."""
    seeds = torch.arange(1, len(lengths) + 1, dtype=torch.int32) * 7919
    return DropoutStream.of_batch(seeds.to(device), boundaries(lengths, device), positions_of(lengths, tokens, device))


def layer_norm_problem(
    shape: tuple[int, int], generator: torch.Generator, *, extras: Sequence[str] = ("bias", "dropout", "residual")
) -> Problem:
    """Return LayerNorm of (tokens, width) with some of bias, dropout and residual, and perhaps a result used twice."""
    (tokens, width), device = shape, generator.device
    tensors = {
        "x_TD": torch.randn(shape, generator=generator, device=device),
        "weight_D": 1 + 0.5 * torch.randn(width, generator=generator, device=device),
    }
    if "unshifted" not in extras:
        tensors["bias_D"] = torch.randn(width, generator=generator, device=device)
    if "bias" in extras:
        tensors["input_bias_D"] = torch.randn(width, generator=generator, device=device)
    if "residual" in extras:
        tensors["residual_TD"] = torch.randn(shape, generator=generator, device=device)
    site = None
    if "dropout" in extras:
        site = dropout_stream([tokens], tokens, device).site(3, ATTENTION_OUTPUT, 0.1)
    options: dict[str, Any] = {"eps": 1e-12, "dropout": site}
    first, twin = (0.75, 0.25) if "twice" in extras else (1.0, 0.0)

    def weighted(*, bias_D: Tensor | None = None, **rest: Any) -> Tensor:
        y_TD, twin_TD = layer_norm(bias_D=bias_D, **options, **rest)
        return y_TD if not twin else first * y_TD + twin * twin_TD

    def reference(*, bias_D: Tensor | None = None, **rest: Any) -> Tensor:
        return layer_norm_reference(bias_D=bias_D, **options, **rest)[0]

    return Problem(weighted, reference, tensors)


def add_layer_norm_problem(
    shape: tuple[int, int], generator: torch.Generator, *, extras: Sequence[str] = ("dropout", "sum")
) -> Problem:
    """Return LayerNorm of a sum with some of ``bias`` (a shift), ``dropout`` and ``sum`` (it is used as well)."""
    (tokens, width), device = shape, generator.device
    tensors = {
        "x_TD": torch.randn(shape, generator=generator, device=device),
        "weight_D": 1 + 0.5 * torch.randn(width, generator=generator, device=device),
        "residual_TD": torch.randn(shape, generator=generator, device=device),
    }
    if "bias" in extras:
        tensors["bias_D"] = torch.randn(width, generator=generator, device=device)
    site = None
    if "dropout" in extras:
        site = dropout_stream([tokens], tokens, device).site(3, ATTENTION_OUTPUT, 0.1)

    def weighted(op: Op, *, bias_D: Tensor | None = None, **arguments: Any) -> Tensor:
        y_TD, z_TD = op(bias_D=bias_D, eps=1e-5, dropout=site, returns_sum=True, **arguments)
        return 0.75 * y_TD + 0.25 * z_TD if "sum" in extras else y_TD

    run, reference = (functools.partial(weighted, op) for op in (layer_norm, layer_norm_reference))
    return Problem(run, reference, tensors)


def bias_gelu_problem(shape: tuple[int, int], generator: torch.Generator, *, approximate: bool) -> Problem:
    """Return GELU of (tokens, width)."""
    tensors = {
        "x_TF": 2 * torch.randn(shape, generator=generator, device=generator.device),
        "bias_F": torch.randn(shape[1], generator=generator, device=generator.device),
    }
    return Problem(
        functools.partial(bias_gelu, approximate=approximate),
        functools.partial(bias_gelu_reference, approximate=approximate),
        tensors,
    )


def gated_gelu_problem(shape: tuple[int, int], generator: torch.Generator, *, approximate: bool) -> Problem:
    """Return GeGLU with a result of (tokens, width)."""
    tokens, width = shape
    tensors = {"x_TC": 2 * torch.randn(tokens, 2 * width, generator=generator, device=generator.device)}
    return Problem(
        functools.partial(gated_gelu, approximate=approximate),
        functools.partial(gated_gelu_reference, approximate=approximate),
        tensors,
    )


def attention_problem(
    lengths: Sequence[int],
    generator: torch.Generator,
    *,
    heads: int,
    head_width: int,
    padding: int = 0,
    dropout: float = 0.1,
) -> Problem:
    """Return attention within sequences of these lengths, ``padding`` tokens after them."""
    tokens, device = sum(lengths) + padding, generator.device
    stream = dropout_stream(lengths, tokens, device)
    site = attention_dropout(stream, layer=3, probability=dropout, num_heads=heads)
    options: dict[str, Any] = {
        "sequences": DenseSequences(boundaries(lengths, device), max(lengths)),
        "num_heads": heads,
        "dropout": site,
    }
    columns = 3 * heads * head_width
    tensors = {
        "qkv_TC": torch.randn(tokens, columns, generator=generator, device=device),
        "bias_C": torch.randn(columns, generator=generator, device=device),
    }

    def reference(qkv_TC: Tensor, bias_C: Tensor) -> Tensor:  # the bias is in qkv already
        return attention_reference(qkv_TC + bias_C - bias_C.detach(), **options)

    return Problem(functools.partial(attention, **options), reference, tensors)


def rotary_attention_problem(
    lengths: Sequence[int],
    generator: torch.Generator,
    *,
    heads: int,
    head_width: int,
    reach: int | None,
    base: float = 10_000.0,
    padding: int = 0,
    dropout: float = 0.1,
) -> Problem:
    """Return attention with rotary positions, to all tokens of the sequence or to those at most ``reach`` away."""
    tokens, device = sum(lengths) + padding, generator.device
    stream = dropout_stream(lengths, tokens, device)
    cu_seqlens, positions_T = boundaries(lengths, device), positions_of(lengths, tokens, device)
    site = attention_dropout(stream, layer=3, probability=dropout, num_heads=heads)
    options: dict[str, Any] = {"reach": reach, "num_heads": heads, "dropout": site}

    def run(qkv_TC: Tensor, *, backend: str) -> Tensor:
        sequences = plan_rotary_attention(
            cu_seqlens, positions_T, max_seqlen=max(lengths), num_heads=heads, reach=reach or 1, backend=backend
        )
        turns_P2E = turns_of(sequences.positions_P, base, head_width)
        return rotary_attention(qkv_TC, turns_P2E, sequences, backend=backend, **options)

    def reference(qkv_TC: Tensor) -> Tensor:
        turns_T2E = turns_of(positions_T, base, head_width)
        return rotary_attention_reference(qkv_TC, turns_T2E, cu_seqlens, max_seqlen=max(lengths), **options)

    tensors = {"qkv_TC": torch.randn(tokens, 3 * heads * head_width, generator=generator, device=device)}
    return Problem(run, reference, tensors)


def cross_entropy_problem(shape: tuple[int, int], generator: torch.Generator, *, classes: int) -> Problem:
    """Return cross-entropy of (rows, padded classes), every fifth row not counted, columns from ``classes`` on -inf."""
    device = generator.device
    labels_M = torch.randint(0, classes, shape[:1], generator=generator, device=device)
    labels_M[::5] = -100

    def cut(op: Callable[..., tuple[Tensor, Tensor]], logits_MV: Tensor, **options: str) -> Tensor:
        is_padding_V = torch.arange(shape[1], device=device) >= classes
        return op(logits_MV.masked_fill(is_padding_V, -torch.inf), labels_M, **options)[0]

    tensors = {"logits_MV": 3 * torch.randn(shape, generator=generator, device=device)}
    return Problem(functools.partial(cut, cross_entropy), functools.partial(cut, cross_entropy_reference), tensors)
