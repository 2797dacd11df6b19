"""One problem for each op: an op on inputs of a given shape, and its reference, for values and gradients."""

# T packed tokens, D hidden, F intermediate, C = 2 * F or 3 * D, M predicted positions, V classes
# R rows of a table

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from megabert.ops.attention.dense.api import attention
from megabert.ops.attention.dense.cpu import DenseSequences
from megabert.ops.attention.dense.reference import attention_reference
from megabert.ops.attention.disentangled.api import disentangled_attention, plan_disentangled_attention
from megabert.ops.attention.disentangled.cpu import DisentangledSequences, RelativePositions
from megabert.ops.attention.disentangled.reference import disentangled_attention_reference
from megabert.ops.attention.dropout import attention_dropout
from megabert.ops.attention.rotary.api import plan_rotary_attention, rotary_attention, turns_of
from megabert.ops.attention.rotary.reference import rotary_attention_reference
from megabert.ops.bias_gelu.api import bias_gelu
from megabert.ops.bias_gelu.reference import bias_gelu_reference
from megabert.ops.cross_entropy.api import row_cross_entropy
from megabert.ops.cross_entropy.reference import row_cross_entropy_reference
from megabert.ops.dense import add_product_, sum_products_in
from megabert.ops.dropout import ATTENTION_OUTPUT, Dropout
from megabert.ops.embedding import embedding
from megabert.ops.gated_gelu.api import gated_gelu
from megabert.ops.gated_gelu.reference import gated_gelu_reference
from megabert.ops.layer_norm.api import layer_norm
from megabert.ops.layer_norm.reference import layer_norm_reference
from megabert.ops.proof.inputs import boundaries, dropout_stream, near_positions, packed_positions
from megabert.ops.proof.problem import TOLERANCE, Problem

EPS = 0.5
"""LayerNorm's eps, close to the variance of its rows: next to it a usual one, of 1e-12, would not count."""

GELU_TOLERANCE = TOLERANCE | {torch.float16: 1e-3}
"""Bounds of ops that round once (2.1e-4 in float16 on an H100): in 1e-2 a wrong series would have room."""


def normal(generator: torch.Generator, **shapes: tuple[int, ...]) -> dict[str, Tensor]:
    """Return random tensors of these shapes, by name."""
    return {name: torch.randn(shape, generator=generator, device=generator.device) for name, shape in shapes.items()}


def layer_norm_problem(
    shape: tuple[int, int], generator: torch.Generator, *, extras: Sequence[str] = ("bias", "dropout", "residual")
) -> Problem:
    """Return LayerNorm of (tokens, width) with some of bias, dropout and residual, and perhaps a result used twice."""
    row = shape[1:]
    optional = {
        "bias_D": () if "unshifted" in extras else row,
        "input_bias_D": row if "bias" in extras else (),
        "residual_TD": shape if "residual" in extras else (),
    }
    tensors, site = _layer_norm_inputs(shape, generator, extras, **{name: s for name, s in optional.items() if s})
    options: dict[str, Any] = {"eps": EPS, "dropout": site}
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
    shift = {"bias_D": shape[1:]} if "bias" in extras else {}
    tensors, site = _layer_norm_inputs(shape, generator, extras, residual_TD=shape, **shift)

    def weighted(op: Callable[..., tuple[Tensor, Tensor]], *, bias_D: Tensor | None = None, **arguments: Any) -> Tensor:
        y_TD, z_TD = op(bias_D=bias_D, eps=EPS, dropout=site, returns_sum=True, **arguments)
        return 0.75 * y_TD + 0.25 * z_TD if "sum" in extras else y_TD

    run, reference = (functools.partial(weighted, op) for op in (layer_norm, layer_norm_reference))
    return Problem(run, reference, tensors)


def _layer_norm_inputs(
    shape: tuple[int, int], generator: torch.Generator, extras: Sequence[str], **optional: tuple[int, ...]
) -> tuple[dict[str, Tensor], Dropout | None]:
    tensors = normal(generator, x_TD=shape, weight_D=shape[1:], **optional)
    tensors["weight_D"] = 1 + 0.5 * tensors["weight_D"]
    stream = dropout_stream(shape[:1], shape[0], generator.device)
    return tensors, stream.site(3, ATTENTION_OUTPUT, 0.1) if "dropout" in extras else None


def bias_gelu_problem(
    shape: tuple[int, int], generator: torch.Generator, *, approximate: bool, is_negative: bool = False
) -> Problem:
    """Return GELU of (tokens, width), perhaps of negative numbers alone, next to whose results others are large."""
    tensors = normal(generator, x_TF=shape, bias_F=shape[1:])
    if is_negative:
        tensors = {name: -tensor.abs() for name, tensor in tensors.items()}
    run, reference = (functools.partial(op, approximate=approximate) for op in (bias_gelu, bias_gelu_reference))
    return Problem(run, reference, tensors | {"x_TF": 2 * tensors["x_TF"]}, GELU_TOLERANCE)


def gated_gelu_problem(
    shape: tuple[int, int], generator: torch.Generator, *, approximate: bool, is_negative: bool = False
) -> Problem:
    """Return GeGLU with a result of (tokens, width), perhaps of negative numbers alone."""
    x_TC = 2 * normal(generator, x_TC=(shape[0], 2 * shape[1]))["x_TC"]
    x_TC = -x_TC.abs() if is_negative else x_TC
    run, reference = (functools.partial(op, approximate=approximate) for op in (gated_gelu, gated_gelu_reference))
    return Problem(run, reference, {"x_TC": x_TC}, GELU_TOLERANCE)


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
    tensors = normal(generator, qkv_TC=(tokens, 3 * heads * head_width), bias_C=(3 * heads * head_width,))
    _enlarge_queries(tensors["qkv_TC"])

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
    cu_seqlens, positions_T = boundaries(lengths, device), packed_positions(lengths, tokens, device)
    site = attention_dropout(stream, layer=3, probability=dropout, num_heads=heads)
    options: dict[str, Any] = {"reach": reach, "num_heads": heads, "dropout": site}

    def run(qkv_TC: Tensor, *, backend: str) -> Tensor:
        sequences = plan_rotary_attention(
            cu_seqlens,
            positions_T,
            max_seqlen=max(lengths),
            num_heads=heads,
            reach=reach or 1,
            has_dropout=site is not None,
            backend=backend,
        )
        turns_P2E = turns_of(sequences.positions_P, base, head_width)
        return rotary_attention(qkv_TC, turns_P2E, sequences, backend=backend, **options)

    def reference(qkv_TC: Tensor) -> Tensor:
        turns_T2E = turns_of(positions_T, base, head_width)
        return rotary_attention_reference(qkv_TC, turns_T2E, cu_seqlens, max_seqlen=max(lengths), **options)

    tensors = normal(generator, qkv_TC=(tokens, 3 * heads * head_width))
    _enlarge_queries(tensors["qkv_TC"])
    return Problem(run, reference, tensors)


def disentangled_attention_problem(
    lengths: Sequence[int],
    generator: torch.Generator,
    *,
    heads: int,
    head_width: int,
    span: int,
    terms: Sequence[str] = ("c2p", "p2c"),
    padding: int = 0,
    dropout: float = 0.1,
) -> Problem:
    """Return attention with scores of relative positions, at most ``span`` to each side, of some ``terms``."""
    tokens, device = sum(lengths) + padding, generator.device
    cu_seqlens, position_E = boundaries(lengths, device), near_positions(max(1, *lengths), span)
    table = (int(position_E[-1]) + 1, heads * head_width)
    position_E = position_E.to(device)
    stream = dropout_stream(lengths, tokens, device)
    site = attention_dropout(stream, layer=3, probability=dropout, num_heads=heads)
    options: dict[str, Any] = {"num_heads": heads, "dropout": site}

    def positions(key_PD: Tensor | None = None, query_PD: Tensor | None = None) -> RelativePositions:
        return RelativePositions(key_PD, query_PD, position_E)

    def run(qkv_TC: Tensor, *, backend: str, **projected: Tensor) -> Tensor:
        sizes = {"tokens": tokens, "max_seqlen": max(lengths), "num_heads": heads}
        sequences = plan_disentangled_attention(cu_seqlens, **sizes, backend=backend)
        return disentangled_attention(qkv_TC, positions(**projected), sequences, backend=backend, **options)

    def reference(qkv_TC: Tensor, **projected: Tensor) -> Tensor:
        sequences = DisentangledSequences(cu_seqlens, max(lengths))
        return disentangled_attention_reference(qkv_TC, positions(**projected), sequences, **options)

    shapes = {"qkv_TC": (tokens, 3 * heads * head_width)}
    shapes |= {name: table for name, term in (("key_PD", "c2p"), ("query_PD", "p2c")) if term in terms}
    tensors = normal(generator, **shapes)
    _enlarge_queries(tensors["qkv_TC"])
    return Problem(run, reference, tensors)


def _enlarge_queries(qkv_TC: Tensor) -> None:
    """Give a fifth of the tokens scores of which a maximum has to be subtracted before an exponential is taken."""
    qkv_TC[::5, : qkv_TC.shape[1] // 3] *= 3.0  # more, and turned ones in bfloat16 are 1e-2 off


def cross_entropy_problem(shape: tuple[int, int], generator: torch.Generator, *, classes: int) -> Problem:
    """Return each row's cross-entropy of (rows, padded classes) plus the number of rows that are right.

    A fifth of the rows does not count (-1 or -100), a fifth is right, a fifth has equal logits. Padding is -inf.
    """
    device = generator.device
    logits_MV = 3 * torch.randn(shape, generator=generator, device=device)
    labels_M = torch.randint(0, classes, shape[:1], generator=generator, device=device)
    labels_M[::5], labels_M[1::5], logits_MV[2::5] = -100, logits_MV[1::5, :classes].argmax(1), 0.0
    labels_M[::10] = -1

    def cut(op: Callable[..., tuple[Tensor, Tensor]], logits_MV: Tensor, **options: str) -> Tensor:
        is_padding_V = torch.arange(shape[1], device=device) >= classes
        losses_M, correct = op(logits_MV.masked_fill(is_padding_V, -torch.inf), labels_M, **options)
        return losses_M + correct

    ours, theirs = (functools.partial(cut, op) for op in (row_cross_entropy, row_cross_entropy_reference))
    return Problem(ours, theirs, {"logits_MV": logits_MV})


def dense_problem(shape: tuple[int, int], generator: torch.Generator) -> Problem:
    """Return a weight's gradient that two products of (tokens, width) add up; on a GPU in float32 for all dtypes."""
    width, device = shape[1], generator.device

    def run(left_TD: Tensor, right_TD: Tensor, *, backend: str) -> dict[str, Tensor]:
        left_TD, right_TD = left_TD.detach(), right_TD.detach()
        total = torch.full((width, width), torch.nan, device=device)
        for is_first in (True, False):
            add_product_(total, left_TD.t(), right_TD, is_first=is_first)
        return {"sum": total}

    def reference(left_TD: Tensor, right_TD: Tensor) -> dict[str, Tensor]:
        return {"sum": 2 * left_TD.detach().t() @ right_TD.detach()}

    tensors = normal(generator, left_TD=shape, right_TD=shape)
    on_gpu = dict.fromkeys(TOLERANCE, TOLERANCE[torch.float32])
    return Problem(run, reference, tensors, on_gpu if device.type == "cuda" else TOLERANCE)


class GradientSum:
    """The float32 sum of a weight's gradients, as a bucket keeps it."""

    def __init__(self, weight: Tensor) -> None:
        self.total = torch.full_like(weight, torch.nan, dtype=torch.float32)
        self.is_first = True

    def add_product(self, left_OT: Tensor, right_TI: Tensor) -> None:
        """Add a product, or begin with it."""
        add_product_(self.total, left_OT, right_TI, is_first=self.is_first)
        self.is_first = False


def embedding_problem(shape: tuple[int, int], generator: torch.Generator, *, rows: int, has_sum: bool) -> Problem:
    """Return a table of ``rows``, looked up for (tokens, width), and its gradient, for which it may have a sum.

    On a GPU the gradient of few rows is a product, which goes to the sum. On a CPU it is torch's own, which adds up
    16 bits in 16 bits and is compared in float32 only.
    """
    (tokens, width), device = shape, generator.device
    ids_T = torch.randint(0, rows, (tokens,), generator=generator, device=device)

    def run(table_RD: Tensor, grad_TD: Tensor, *, backend: str) -> dict[str, Tensor]:
        gradient_sum = GradientSum(table_RD)
        if has_sum:
            sum_products_in(table_RD, gradient_sum)
        out_TD = embedding(ids_T, table_RD)
        out_TD.backward(grad_TD.detach())
        return {"out": out_TD, "gradient": gradient_sum.total if table_RD.grad is None else table_RD.grad}

    def reference(table_RD: Tensor, grad_TD: Tensor) -> dict[str, Tensor]:
        out_TD = functional.embedding(ids_T, table_RD)
        (gradient_RD,) = torch.autograd.grad(out_TD, table_RD, grad_TD.detach())
        return {"out": out_TD, "gradient": gradient_RD}

    shapes = {"table_RD": (rows, width), "grad_TD": (tokens, width)}
    tensors = {name: torch.randn(shape, generator=generator, device=device) for name, shape in shapes.items()}
    in_float32 = {torch.float32: TOLERANCE[torch.float32]}
    return Problem(run, reference, tensors, TOLERANCE if device.type == "cuda" else in_float32)
