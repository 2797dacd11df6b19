"""One problem for each op: an op on inputs of a given shape, and its reference, for values and gradients."""

# T packed tokens, D hidden, E embedding width, F intermediate, C = 2 * F or 3 * D, M predicted positions, V classes

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from megabert.ops.attention.dense.api import attention
from megabert.ops.attention.dense.cpu import DenseSequences
from megabert.ops.attention.dense.reference import attention_reference
from megabert.ops.attention.disentangled.api import disentangled_attention, plan_disentangled_attention
from megabert.ops.attention.disentangled.cpu import DisentangledSequences, RelativePositions
from megabert.ops.attention.disentangled.reference import disentangled_attention_reference
from megabert.ops.attention.rotary.api import plan_rotary_attention, rotary_attention, turns_of
from megabert.ops.attention.rotary.reference import rotary_attention_reference
from megabert.ops.bias_gelu.api import bias_gelu
from megabert.ops.bias_gelu.reference import bias_gelu_reference
from megabert.ops.cross_entropy.api import row_cross_entropy
from megabert.ops.cross_entropy.reference import row_cross_entropy_reference
from megabert.ops.dense import add_product_, dense, table_gradient
from megabert.ops.dropout import ATTENTION_OUTPUT, Dropout
from megabert.ops.fp8 import row_product, row_product_reference
from megabert.ops.gated_gelu.api import gated_gelu
from megabert.ops.gated_gelu.reference import gated_gelu_reference
from megabert.ops.layer_norm.api import layer_norm
from megabert.ops.layer_norm.reference import layer_norm_reference
from megabert.ops.proof.inputs import PackedHeads, dropout_stream, near_positions
from megabert.ops.proof.problem import TOLERANCE, Op, Problem

BOTH_TERMS = ("c2p", "p2c")
"""Scores of positions: contents with positions, and positions with contents."""

EPS = 0.5
"""LayerNorm's eps, close to the variance of its rows: next to it a usual one, of 1e-12, would not count."""

GELU_TOLERANCE = TOLERANCE | {torch.float16: 1e-3}
"""Bounds of ops that round once (2.1e-4 in float16 on an H100): in 1e-2 a wrong series would have room."""


NARROW = 16
"""Width of an input whose product takes little time."""


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


def dense_op(packed: PackedHeads) -> Op:
    """Return BERT's attention as a function of ``qkv_TC`` and ``backend``."""
    return functools.partial(attention, sequences=DenseSequences(packed.cu_seqlens, packed.longest), **packed.options)


def attention_problem(lengths: Sequence[int], generator: torch.Generator, **sizes: Any) -> Problem:
    """Return attention within sequences; ``sizes`` are arguments of `PackedHeads`."""
    packed = PackedHeads(lengths, generator, **sizes)
    tensors = normal(generator, **packed.shapes, bias_C=packed.shapes["qkv_TC"][1:])
    _enlarge_queries(tensors["qkv_TC"])

    def reference(qkv_TC: Tensor, bias_C: Tensor) -> Tensor:  # the bias is in qkv already
        sequences = DenseSequences(packed.cu_seqlens, packed.longest)
        return attention_reference(qkv_TC + bias_C - bias_C.detach(), sequences, packed.heads_and_dropout)

    return Problem(dense_op(packed), reference, tensors)


def rotary_op(packed: PackedHeads, *, reach: int | None, base: float = 10_000.0) -> Op:
    """Return ModernBERT's attention as a function of ``qkv_TC`` and ``backend``."""
    sizes: dict[str, Any] = {"max_seqlen": packed.longest, "num_heads": packed.heads, "reach": reach or 1}
    sizes["has_dropout"] = packed.site is not None

    def run(qkv_TC: Tensor, *, backend: str) -> Tensor:
        sequences = plan_rotary_attention(packed.cu_seqlens, packed.positions_T, backend=backend, **sizes)
        turns_P2E = turns_of(sequences.positions_P, base, packed.head_width)
        return rotary_attention(qkv_TC, turns_P2E, sequences, reach=reach, backend=backend, **packed.options)

    return run


def rotary_attention_problem(
    lengths: Sequence[int], generator: torch.Generator, *, reach: int | None, base: float = 10_000.0, **sizes: Any
) -> Problem:
    """Return attention with rotary positions, to all tokens of the sequence or to those at most ``reach`` away."""
    packed = PackedHeads(lengths, generator, **sizes)

    def reference(qkv_TC: Tensor) -> Tensor:
        turns_T2E = turns_of(packed.positions_T, base, packed.head_width)
        sequences = DenseSequences(packed.cu_seqlens, packed.longest)
        return rotary_attention_reference(qkv_TC, turns_T2E, sequences, packed.heads_and_dropout, reach=reach)

    tensors = normal(generator, **packed.shapes)
    _enlarge_queries(tensors["qkv_TC"])
    return Problem(rotary_op(packed, reach=reach, base=base), reference, tensors)


def disentangled_op(packed: PackedHeads, position_E: Tensor) -> Op:
    """Return DeBERTa's attention as a function of ``qkv_TC``, projected positions and ``backend``."""
    sizes = {"tokens": packed.tokens, "max_seqlen": packed.longest, "num_heads": packed.heads}

    def run(qkv_TC: Tensor, *, backend: str, **projected: Tensor) -> Tensor:
        sequences = plan_disentangled_attention(packed.cu_seqlens, **sizes, backend=backend)
        positions = _relative(packed, position_E, projected)
        return disentangled_attention(qkv_TC, positions, sequences, backend=backend, **packed.options)

    return run


def _relative(packed: PackedHeads, position_E: Tensor, projected: Mapping[str, Tensor]) -> RelativePositions:
    return RelativePositions(projected.get("key_PD"), projected.get("query_PD"), position_E.to(packed.device))


def disentangled_attention_problem(
    lengths: Sequence[int],
    generator: torch.Generator,
    *,
    span: int,
    terms: Sequence[str] = ("c2p", "p2c"),
    **sizes: Any,
) -> Problem:
    """Return attention with scores of relative positions, at most ``span`` to each side, of some ``terms``."""
    packed = PackedHeads(lengths, generator, **sizes)
    position_E = near_positions(max(1, packed.longest), span)
    table = (int(position_E[-1]) + 1, packed.heads * packed.head_width)

    def reference(qkv_TC: Tensor, **projected: Tensor) -> Tensor:
        sequences = DisentangledSequences(packed.cu_seqlens, packed.longest)
        positions = _relative(packed, position_E, projected)
        return disentangled_attention_reference(qkv_TC, positions, sequences, packed.heads_and_dropout)

    tables = {name: table for name, term in zip(("key_PD", "query_PD"), BOTH_TERMS, strict=True) if term in terms}
    tensors = normal(generator, **packed.shapes, **tables)
    _enlarge_queries(tensors["qkv_TC"])
    return Problem(disentangled_op(packed, position_E), reference, tensors)


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


def table_gradient_problem(shape: tuple[int, int], generator: torch.Generator, *, rows: int) -> Problem:
    """Return the gradient of a table from (tokens, width): half of them took row 0, and none the last two rows."""
    ids_T = torch.randint(0, rows - 2, shape[:1], generator=generator, device=generator.device)
    ids_T[: shape[0] // 2] = 0

    def run(grad_TE: Tensor, *, backend: str) -> dict[str, Tensor]:
        return {"gradient": table_gradient(grad_TE.detach(), ids_T, rows, backend=backend)}

    def reference(grad_TE: Tensor) -> dict[str, Tensor]:
        return {"gradient": grad_TE.new_zeros(rows, shape[1]).index_add(0, ids_T, grad_TE.detach())}

    return Problem(run, reference, normal(generator, grad_TE=shape))


def any_gelu(h_TC: Tensor, *, is_gated: bool, is_approximate: bool, backend: str) -> Tensor:
    """Return the GELU of a feed-forward layer."""
    if is_gated:
        return gated_gelu(h_TC, approximate=is_approximate, backend=backend)
    return bias_gelu(h_TC, h_TC.new_zeros(h_TC.shape[1]), approximate=is_approximate, backend=backend)


def gelu_of_product_problem(shape: tuple[int, int], generator: torch.Generator, **form: bool) -> Problem:
    """Return GELU of a narrow dense layer in 8 bits, (tokens, width), to time kernels that cast as they store."""

    def run(x_TI: Tensor, weight_CI: Tensor, *, backend: str) -> Tensor:
        return any_gelu(dense(x_TI, weight_CI, in_fp8=True), backend=backend, **form)

    return Problem(run, run, normal(generator, x_TI=(shape[0], NARROW), weight_CI=(shape[1], NARROW)))


def fp8_problem(tokens: int, inputs: int, outputs: int, generator: torch.Generator) -> Problem:
    """Return the two products of a dense layer that are in 8 bits: its output and the gradient of its input."""

    def products(multiply: Op, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        x_TI, weight_OI, grad_TO = (tensors[name].detach() for name in ("x_TI", "weight_OI", "grad_TO"))
        gradient = multiply(grad_TO, weight_OI.t())
        return {"output": multiply(x_TI, weight_OI), "gradient": gradient}  # type: ignore[dict-item]

    def run(*, backend: str, **tensors: Tensor) -> dict[str, Tensor]:
        return products(row_product, tensors)

    def reference(**tensors: Tensor) -> dict[str, Tensor]:
        return products(row_product_reference, tensors)

    tensors = normal(generator, x_TI=(tokens, inputs), weight_OI=(outputs, inputs), grad_TO=(tokens, outputs))
    return Problem(run, reference, tensors, {torch.bfloat16: TOLERANCE[torch.bfloat16]})
