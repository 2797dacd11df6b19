"""Problems without autograd: masks and keys of dropout, equal to plain torch's bit for bit, and LAMB's two passes."""

# T packed tokens, B sequences, S tokens of a sequence, N heads, H head width, D hidden

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from megabert.ops import dropout as keyed
from megabert.ops.backend import choose
from megabert.ops.dense import dense
from megabert.ops.dropout import AttentionDropout, probability_mask
from megabert.ops.fp8 import MULTIPLE, cast_rows, row_product
from megabert.ops.lamb import Coefficients, SlotFragment, lamb_passes
from megabert.ops.layer_norm.api import layer_norm
from megabert.ops.proof.inputs import PackedHeads, dropout_stream, known_dropout, near_positions
from megabert.ops.proof.problem import EXACT, Op, Problem
from megabert.ops.proof.problems import NARROW, any_gelu, dense_op, disentangled_op, normal, rotary_op

CPU = torch.device("cpu")
HIGH_RATE = 0.3
"""Probability of dropping an element in masks: at BERT's 0.1 a wrong threshold would show less often."""
COEFFICIENTS = Coefficients(
    beta1=0.9, beta2=0.98, eps=1e-6, weight_decay=0.1, gradient_scale=0.37, exp_avg_scale=2.0, exp_avg_sq_scale=3.0
)
"""A step's numbers of which none is neutral: a kernel that leaves one out is wrong."""


def dropout_keys_problem(tokens: int, generator: torch.Generator) -> Problem:
    """Return the keys of ``tokens`` rows, which every site of dropout begins from."""
    seeds_T = dropout_stream([tokens], tokens, CPU).row_seeds_T
    constant = keyed.site_constant(3, keyed.ATTENTION_OUTPUT)

    def run(*, backend: str) -> dict[str, Tensor]:
        device = generator.device
        keys_T = choose("dropout_keys", backend, device.type)(seeds_T.to(device), constant)
        return {"keys": keys_T}

    return Problem(run, lambda: {"keys": keyed.row_keys_torch(seeds_T, constant).to(generator.device)}, {}, EXACT)


def dropout_problem(shape: tuple[int, int], generator: torch.Generator) -> Problem:
    """Return the embeddings' dropout of (tokens, width), with its gradient."""
    site = known_dropout(shape[0], -1, keyed.EMBEDDINGS, generator.device)

    def reference(x_TD: Tensor) -> Tensor:
        return x_TD * kept_of(site, shape) * site.scale

    tensors = {"x_TD": torch.randn(shape, generator=generator, device=generator.device)}
    return Problem(lambda x_TD, *, backend: keyed.dropout(x_TD, site, backend=backend), reference, tensors)


def kept_of(site: keyed.Dropout, shape: tuple[int, int]) -> Tensor:
    """Return the mask of a site as plain torch computes it on the CPU."""
    return keyed.keep_mask(site, site.row_keys.cpu(), shape[1]).to(site.row_keys.device)


def dropout_mask_problem(shape: tuple[int, int], generator: torch.Generator) -> Problem:
    """Return the masks of both passes of the embeddings' dropout."""
    site = known_dropout(shape[0], -1, keyed.EMBEDDINGS, generator.device)

    def run(ones_TD: Tensor, *, backend: str) -> dict[str, Tensor]:
        out_TD = keyed.dropout(ones_TD, site, backend=backend)
        (gradient_TD,) = torch.autograd.grad(out_TD, ones_TD, torch.ones_like(out_TD))
        return {"forward": out_TD != 0, "backward": gradient_TD != 0}

    return _masks(run, lambda: kept_of(site, shape), torch.ones(shape, device=generator.device))


def layer_norm_mask_problem(shape: tuple[int, int], generator: torch.Generator, *, returns_sum: bool) -> Problem:
    """Return the masks of both passes of LayerNorm with dropout.

    Every element of the input is 1, so that each row of the sum has two values, and the higher ones survived.
    """
    device = generator.device
    site = known_dropout(shape[0], 3, keyed.ATTENTION_OUTPUT, device, probability=HIGH_RATE)

    def run(ones_TD: Tensor, *, backend: str) -> dict[str, Tensor]:
        weight_D, zeros_D = ones_TD.detach().new_ones(shape[1]), ones_TD.detach().new_zeros(shape[1])
        bias_D = None if returns_sum else zeros_D
        options: dict[str, Any] = {"residual_TD": torch.zeros_like(ones_TD), "returns_sum": returns_sum}
        y_TD, _ = layer_norm(
            ones_TD, weight_D, bias_D, eps=1e-12, input_bias_D=bias_D, dropout=site, backend=backend, **options
        )
        grad_TD = torch.arange(y_TD.numel(), device=device).sin().view_as(y_TD).to(y_TD.dtype)
        (gradient_TD,) = torch.autograd.grad(y_TD, ones_TD, grad_TD)
        return {"forward": y_TD > 0, "backward": gradient_TD != 0}

    return _masks(run, lambda: kept_of(site, shape), torch.ones(shape, device=device))


def _masks(run: Op, kept: Callable[[], Tensor], ones: Tensor) -> Problem:
    return Problem(run, lambda **_: dict.fromkeys(("forward", "backward"), kept()), {"ones_TD": ones}, EXACT)


def fp8_casts_problem(tokens: int, hidden: int, inner: int, generator: torch.Generator, **form: bool) -> Problem:
    """Return whether products of casts by LayerNorm, GELU and ``row_cast`` equal products of torch's, bit for bit.

    Args:
        tokens: Rows, rounded up so that casts have no room past the end, where a kernel might write unseen.
        hidden: Width of LayerNorm.
        inner: Width of GELU's result.
        generator: Draws the inputs.
        form: Which GELU it is, see ``problems.gelu_of_product``.
    """
    tokens = -(-tokens // MULTIPLE) * MULTIPLE
    site = known_dropout(tokens, 3, keyed.ATTENTION_OUTPUT, generator.device)

    def norm(h_TO: Tensor) -> tuple[Tensor, ...]:
        ones_O, zeros_O, residual_TO = h_TO.new_ones(h_TO.shape[1]), h_TO.new_zeros(h_TO.shape[1]), h_TO.detach()
        if form["is_gated"]:  # as in ModernBERT
            return layer_norm(h_TO, ones_O, None, eps=1e-5, residual_TD=residual_TO, returns_sum=True)
        others: dict[str, Any] = {"input_bias_D": zeros_O, "residual_TD": residual_TO, "dropout": site}
        return layer_norm(h_TO, ones_O, zeros_O, eps=1e-12, **others)

    ops: dict[str, Callable[[Tensor], tuple[Tensor, ...]]] = {
        "LayerNorm": norm,
        "last LayerNorm": lambda h_TO: norm(h_TO)[:1],
        "GELU": lambda h_TO: (any_gelu(h_TO, backend="auto", **form),),
    }

    def run(*, backend: str, x_TI: Tensor, norm_OI: Tensor, gelu_OI: Tensor) -> dict[str, Tensor]:
        found = dict[str, Tensor]()
        for name, op in ops.items():
            found |= _same_casts(op, name, x_TI, gelu_OI if name == "GELU" else norm_OI)
        return found

    columns = (2 if form["is_gated"] else 1) * inner
    tensors = normal(generator, x_TI=(tokens, NARROW), norm_OI=(hidden, NARROW), gelu_OI=(columns, NARROW))
    names = [f"{kind} of {op}" for op in ops for kind in ("result", "gradient")]
    ones = dict.fromkeys(names, torch.ones((), device=generator.device))
    return Problem(run, lambda **_: ones, tensors, {torch.bfloat16: 0.0})


def _same_casts(
    op: Callable[[Tensor], tuple[Tensor, ...]], name: str, x_TI: Tensor, weight_OI: Tensor
) -> dict[str, Tensor]:
    """Return which elements of the product after an op, and of the gradient before it, are as of torch's casts."""
    x_TI, weight_OI = x_TI.detach().requires_grad_(), weight_OI.detach()
    h_TO, gradients = dense(x_TI, weight_OI, in_fp8=True), list[Tensor]()
    h_TO.register_hook(gradients.append)
    y_TK, *others = op(h_TO)
    next_OK = y_TK.detach()[:NARROW] + 1
    product_TO = dense(y_TK, next_OK, in_fp8=True)
    # Small gradients: a column past the end that is not 0 would be the largest value of its row.
    results = (product_TO, *others)
    (grad_TI,) = torch.autograd.grad(results, x_TI, [result.detach() / 2**20 for result in results])
    return {
        f"result of {name}": product_TO == _plain_product(y_TK.detach(), next_OK),
        f"gradient of {name}": grad_TI == _plain_product(gradients[0], weight_OI.t()),
    }


def _plain_product(left_TK: Tensor, right_OK: Tensor) -> Tensor:
    left, right = cast_rows(left_TK), cast_rows(right_OK)
    return row_product(left_TK, right_OK, left_cast=left, right_cast=right)


def attention_mask_problem(lengths: Sequence[int], generator: torch.Generator, **sizes: Any) -> Problem:
    """Return the masks of both passes of attention, whose probabilities are dropped."""
    packed = PackedHeads(lengths, generator, dropout=HIGH_RATE, **sizes)
    return _attention_masks(packed, dense_op(packed))


def rotary_attention_mask_problem(
    lengths: Sequence[int], generator: torch.Generator, *, reach: int | None, **sizes: Any
) -> Problem:
    """Return the masks of both passes of attention with rotary positions, seen through its window."""
    packed = PackedHeads(lengths, generator, dropout=HIGH_RATE, **sizes)
    return _attention_masks(packed, rotary_op(packed, reach=reach), reach=reach)


def disentangled_attention_mask_problem(
    lengths: Sequence[int], generator: torch.Generator, *, span: int, **sizes: Any
) -> Problem:
    """Return the masks of both passes of attention with relative positions, whose scores are 0 for equal contents."""
    packed = PackedHeads(lengths, generator, dropout=HIGH_RATE, **sizes)
    position_E = near_positions(max(1, packed.longest), span)
    position_PD = torch.ones(int(position_E[-1]) + 1, packed.heads * packed.head_width, device=packed.device)
    op = functools.partial(disentangled_op(packed, position_E), key_PD=position_PD, query_PD=position_PD)
    return _attention_masks(packed, op)


def _attention_masks(packed: PackedHeads, op: Callable[..., Any], *, reach: int | None = None) -> Problem:
    """Read masks off results: all scores are equal, and values are one-hot, as many keys at a time as a head is wide.

    An output is then not zero if one key survives for one query. With one-hot gradients a value's gradient is not zero
    if that query survives for that key.
    """
    tokens, device, heads, head_width = packed.tokens, packed.device, packed.heads, packed.head_width
    blocks = range(0, packed.longest, head_width)

    def run(one_11: Tensor, *, backend: str) -> dict[str, Tensor]:
        forward, backward = [], []
        for first in blocks:
            one_hot_TH = functional.one_hot((packed.positions_T - first).clamp(-1, head_width) + 1, head_width + 2)
            one_hot_T1H = one_hot_TH[:, None, 1:-1].to(one_11.dtype)
            qkv_T3NH = torch.zeros(tokens, 3, heads, head_width, dtype=one_11.dtype, device=device)
            qkv_T3NH[:, 2] = one_hot_T1H
            out_TD = op(qkv_T3NH.requires_grad_().flatten(1), backend=backend)
            grad_TD = one_hot_T1H.expand(-1, heads, -1).flatten(1)
            (gradient_T3NH,) = torch.autograd.grad(out_TD, qkv_T3NH, grad_TD)
            forward.append(out_TD.unflatten(1, (heads, head_width)) != 0)
            backward.append(gradient_T3NH[:, 2] != 0)
        return {"forward": torch.cat(forward, -1), "backward": torch.cat(backward, -1)}

    def reference(**_: Tensor) -> dict[str, Tensor]:
        assert packed.site is not None
        on_cpu = AttentionDropout(HIGH_RATE, packed.site.seeds_B.cpu(), packed.site.constants_N.cpu())
        forward = torch.zeros(tokens, heads, len(blocks) * head_width, dtype=torch.bool)
        backward, start = forward.clone(), 0
        for keys_N, length in zip(on_cpu.keys_BN(), packed.lengths, strict=True):
            keep_NSS = probability_mask(on_cpu, keys_N, length)
            if reach is not None:
                keep_NSS = keep_NSS & torch.ones(length, length, dtype=torch.bool).triu(-reach).tril(reach)
            forward[start : start + length, :, :length] = keep_NSS.transpose(0, 1)
            backward[start : start + length, :, :length] = keep_NSS.permute(2, 0, 1)
            start += length
        return {"forward": forward.to(device), "backward": backward.to(device)}

    return Problem(run, reference, {"one_11": torch.ones(1, 1, device=device)}, EXACT)


def lamb_problem(
    elements: int, generator: torch.Generator, *, rounded: torch.dtype | None, measures_gradient: bool = False
) -> Problem:
    """Return both passes over a flat of two parameters, with the model's weights in 16 bits or, if None, without.

    ``measures_gradient`` sums up squares as StableAdamW does. Roots of v go from 1 down to a tenth of eps, a tenth is
    0, and gradient and moments have their sizes: so each coefficient counts in the norms, eps and the floor included.
    """
    coefficients = replace(COEFFICIENTS, measures_gradient=measures_gradient)
    tensors = _lamb_flats(elements, generator)
    root = 10 ** (-7 * torch.rand(elements, generator=generator, device=generator.device))
    root[::10] = 0.0
    tensors |= {"grad": 3 * root * tensors["grad"], "m": (root + 1e-6) * tensors["m"], "v": root.square()}
    return Problem(
        lambda *, backend, **flats: _lamb_step(backend, flats, coefficients, rounded),
        lambda **flats: _lamb_step("torch", flats, coefficients, rounded),
        tensors,
        {torch.float32: 1e-5},
    )


def skipped_lamb_problem(elements: int, generator: torch.Generator) -> Problem:
    """Return both passes of a step that is skipped, since a third of its gradient is NaN: every bit stays."""
    coefficients, tensors = replace(COEFFICIENTS, gradient_scale=0.0), _lamb_flats(elements, generator)
    tensors["grad"][::3] = torch.nan

    def bits(*, backend: str = "torch", **flats: Tensor) -> dict[str, Tensor]:
        results = _lamb_step(backend, flats, coefficients, None)
        squares = results.pop("squares")
        return {name: flat.float().view(torch.int32) for name, flat in results.items()} | {"squares": squares}

    return Problem(bits, bits, tensors, {torch.float32: 0.0})


def _lamb_flats(elements: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Return weights, gradient and moments."""
    names, device = ("weights", "grad", "m", "v"), generator.device
    return {name: torch.randn(elements, generator=generator, device=device) for name in names}


def _lamb_step(
    backend: str, flats: dict[str, Tensor], coefficients: Coefficients, rounded: torch.dtype | None
) -> dict[str, Tensor]:
    """Run both passes; the second one moves nothing if the gradient's factor is 0."""
    weights, gradient, exp_avg, exp_avg_sq = (flat.detach().clone() for flat in flats.values())
    elements, device = len(weights), weights.device
    first = elements * 4 // 5
    fragments = [SlotFragment(0, first, 1), SlotFragment(first, elements - first, 0)]
    squares = torch.full((2, 2), elements / 4, dtype=torch.float64, device=device)  # not 0: the pass adds to it
    passes = lamb_passes(backend, device.type)
    options = {"coefficients": coefficients, "fragments": fragments, "squares": squares}
    passes.compute_update(weights, gradient, exp_avg, exp_avg_sq, **options)
    results = {"update": gradient.clone(), "exp_avg": exp_avg, "exp_avg_sq": exp_avg_sq, "squares": squares}
    scales = -squares[0].sqrt() / squares[1].sqrt() * (coefficients.gradient_scale != 0.0)
    copies = {} if rounded is None else {"rounded": torch.zeros_like(weights, dtype=rounded)}
    passes.apply_update(weights, gradient, fragments=fragments, scales=scales, **copies)
    # Rounded weights are the masters', rounded: their difference is zero, bit for bit.
    wrong = {name: copy.double() - weights.to(copy.dtype).double() for name, copy in copies.items()}
    return results | {"weights": weights} | wrong
