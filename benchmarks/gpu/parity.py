"""Part (a): every op against its float64 reference on the real device, values and every gradient."""

import contextlib
import itertools

import torch

from benchmarks import ops_problems
from benchmarks.gpu.rows import Row, Rows
from benchmarks.gpu.sizes import TINY, Sizes
from benchmarks.gpu.warm import compile_beside
from benchmarks.ops_problems import Problem
from megabert.ops.dense import add_product_

LAYER_NORM_EXTRAS = (
    (),
    ("unshifted",),
    ("residual",),
    ("bias", "residual"),
    ("bias", "dropout", "residual"),
    ("bias", "dropout", "residual", "twice"),
)
"""The embeddings', the head's, and a layer's: in validation, and in training with its result used once or twice."""

ADD_LAYER_NORM_EXTRAS = ((), ("sum",), ("dropout", "sum"), ("bias", "dropout", "sum"))
"""ModernBERT's: the last one, a layer's, a layer's with dropout, and with a shift."""


def problems(sizes: Sizes, generator: torch.Generator) -> dict[str, Problem]:
    """Return one problem a row: odd shapes, BERT-Large's, and every variant that training launches."""
    heads, head_width = sizes.heads, sizes.hidden // sizes.heads
    found = {}
    for shape in ((5, 1023), (300 if sizes is TINY else 4099, sizes.hidden)):
        for extras in LAYER_NORM_EXTRAS:
            label = f"layer_norm {shape[0]}x{shape[1]} {'+'.join(extras) or 'plain'}"
            found[label] = ops_problems.layer_norm_problem(shape, generator, extras=extras)
        for extras in ADD_LAYER_NORM_EXTRAS:
            label = f"add_layer_norm {shape[0]}x{shape[1]} {'+'.join(extras) or 'plain'}"
            found[label] = ops_problems.add_layer_norm_problem(shape, generator, extras=extras)
    for approximate in (False, True):
        shape = (77, sizes.intermediate)
        form = f"{shape[0]}x{shape[1]} {'tanh' if approximate else 'erf'}"
        found[f"bias_gelu {form}"] = ops_problems.bias_gelu_problem(shape, generator, approximate=approximate)
        found[f"gated_gelu {form}"] = ops_problems.gated_gelu_problem(shape, generator, approximate=approximate)
    longest = max(sizes.lengths)
    groups = [[longest // 4, 1, longest // 4 - 3], [longest // 2, 9], [longest, longest - 131, 1]]
    # Enough sequences that a program takes all keys of a head in turn, as in training at 512.
    groups.append([longest] * 17 + [longest // 2 + 1, 1])
    groups = [[max(1, length) for length in lengths] for lengths in groups]
    for lengths in groups:
        for width in (head_width, 32):
            label = f"attention {heads}x{width} {lengths if len(lengths) < 4 else f'{len(lengths)} of {longest}'}"
            found[label] = ops_problems.attention_problem(lengths, generator, heads=heads, head_width=width, padding=5)
    found[f"attention {heads}x{head_width} without dropout"] = ops_problems.attention_problem(
        groups[2], generator, heads=heads, head_width=head_width, padding=5, dropout=0.0
    )
    for lengths, dropout in (([2 * longest, longest // 2 - 3, 1], 0.1), ([longest // 4, 0, 9], 0.1), ([longest], 0.0)):
        for reach in (sizes.reach, None):
            view = "all" if reach is None else f"window {2 * reach}"
            label = f"rotary_attention {heads}x{head_width} {lengths} {view}{'' if dropout else ' without dropout'}"
            found[label] = ops_problems.rotary_attention_problem(
                lengths, generator, heads=heads, head_width=head_width, reach=reach, padding=5, dropout=dropout
            )
    for classes, padded in ((sizes.vocabulary, sizes.vocabulary + 6), (2, 2)):
        found[f"cross_entropy 33x{padded}"] = ops_problems.cross_entropy_problem(
            (33, padded), generator, classes=classes
        )
    return found


DTYPES = (torch.bfloat16, torch.float16, torch.float32)
"""bfloat16 first: it is what trains there."""


def compile_share(sizes: Sizes, number: int, of: int) -> None:
    """Run every ``of``-th row for the sake of its kernels."""
    cases = list(itertools.product(DTYPES, problems(sizes, torch.Generator("cuda")).values()))
    for dtype, problem in cases[number::of]:
        with contextlib.suppress(Exception):
            row(problem, dtype, on_gpu=True)


def measure(rows: Rows, device: torch.device, sizes: Sizes) -> None:
    """Fill the rows of part (a)."""
    generator = torch.Generator(device)
    generator.seed()  # fresh inputs each run
    on_gpu = device.type == "cuda"
    compile_beside(compile_share, (sizes,), limit_s=0.6 * rows.remaining_s())
    rows_of_op = problems(sizes, generator)
    for dtype in DTYPES:
        label = str(dtype).removeprefix("torch.")
        for name, problem in rows_of_op.items():
            rows.measure(f"{name} {label}", lambda problem=problem, dtype=dtype: row(problem, dtype, on_gpu=on_gpu))
        rows.measure(f"dense {label}", lambda dtype=dtype: dense_row(device, dtype, sizes.hidden))
        rows.measure(f"dropout {label}", lambda dtype=dtype: dropout_row(device, dtype, sizes.hidden))
    for rounded in ROUNDED:
        weights = "" if rounded is None else f"with {str(rounded).removeprefix('torch.')} weights "
        rows.measure(f"lamb {weights}float32", lambda rounded=rounded: lamb_row(device, rounded, on_gpu=on_gpu))


def row(problem: Problem, dtype: torch.dtype, *, on_gpu: bool) -> Row:
    """Return the largest error and whether it passes."""
    backend = "triton" if on_gpu else "auto"
    found = ops_problems.errors(problem, dtype, backend=backend)
    bound = ops_problems.TOLERANCE[dtype]
    worst = max(found, key=lambda name: found[name] if found[name] == found[name] else float("inf"))
    return {
        "backend": backend,
        "worst": worst,
        "relative_error": found[worst],
        "bound": bound,
        "passes": all(error < bound for error in found.values()),
    }


def dense_row(device: torch.device, dtype: torch.dtype, width: int) -> Row:
    """Return the error of a weight's gradient that two products add up in float32; on a GPU in all dtypes float32's."""
    left, right = (torch.randn(1000, width, device=device).to(dtype) for _ in range(2))
    total = torch.full((width, width), torch.nan, device=device)
    for is_first in (True, False):
        add_product_(total, left.t(), right, is_first=is_first)
    error = ops_problems.relative_error(total, 2 * left.double().t() @ right.double())
    bound = ops_problems.TOLERANCE[torch.float32 if device.type == "cuda" else dtype]
    return {"backend": "torch", "worst": "sum", "relative_error": error, "bound": bound, "passes": error < bound}


ROUNDED = (None, torch.bfloat16, torch.float16)
"""Dtypes of the model's weights, which LAMB writes beside the masters; None: masters alone."""


def lamb_row(device: torch.device, rounded: torch.dtype | None, *, on_gpu: bool) -> Row:
    """Compare both passes of LAMB with float64, and the weights in 16 bits bit for bit with the masters."""
    generator = torch.Generator(device)
    generator.seed()
    inputs = [torch.randn(50_001, generator=generator, device=device) for _ in range(3)]
    inputs.append(torch.rand(50_001, generator=generator, device=device) ** 4)
    ours, expected = (
        step_of_lamb([tensor.to(dtype, copy=True) for tensor in inputs], rounded, backend=backend)
        for dtype, backend in ((torch.float32, "triton" if on_gpu else "auto"), (torch.float64, "torch"))
    )
    error = max(ops_problems.relative_error(*pair) for pair in zip(ours[:-1], expected[:-1], strict=True))
    is_rounded = rounded is None or torch.equal(ours[-1], ours[0].to(rounded))
    return {"relative_error": error, "bound": 1e-5, "passes": error < 1e-5 and is_rounded}


def step_of_lamb(flats: list[torch.Tensor], rounded: torch.dtype | None, *, backend: str) -> list[torch.Tensor]:
    """Run both passes on weights, gradient and moments; return these, the squares and the weights in 16 bits."""
    from megabert.ops.lamb import Coefficients, SlotFragment, lamb_passes

    fragments = [SlotFragment(0, 40_000, 1), SlotFragment(40_000, 10_001, 0)]
    coefficients = Coefficients(beta1=0.9, beta2=0.999, eps=1e-6, weight_decay=0.01, exp_avg_scale=2.0)
    squares = torch.zeros(2, 2, dtype=torch.float64, device=flats[0].device)
    weights = torch.zeros_like(flats[0], dtype=rounded)
    passes = lamb_passes(backend, flats[0].device.type)
    passes.compute_update(*flats, coefficients=coefficients, fragments=fragments, squares=squares)
    scales = -squares[0].sqrt() / squares[1].sqrt()
    options = {} if rounded is None else {"rounded": weights}
    passes.apply_update(flats[0], flats[1], fragments=fragments, scales=scales, **options)
    return [*flats, squares, weights]


def dropout_row(device: torch.device, dtype: torch.dtype, width: int) -> Row:
    """Compare row keys and the embeddings' dropout with torch's, whose masks they share bit for bit."""
    from megabert.ops.dropout import EMBEDDINGS, dropout, keep_mask

    site, reference = (
        ops_problems.dropout_stream([300, 1, 77], 400, place).site(-1, EMBEDDINGS, 0.1)
        for place in (device, torch.device("cpu"))
    )
    assert site is not None
    assert reference is not None
    x = torch.randn(400, width, device=device).to(dtype).requires_grad_()
    out = dropout(x, site)
    (gradient,) = torch.autograd.grad(out, x, torch.ones_like(out))
    if device.type == "meta":  # launches alone are recorded
        return {}
    kept = keep_mask(reference, reference.row_keys, width).to(device)
    expected = torch.where(kept, x.double() * site.scale, 0.0)
    error = max(
        ops_problems.relative_error(out, expected), ops_problems.relative_error(gradient, kept.double() * site.scale)
    )
    bound = ops_problems.TOLERANCE[dtype]
    return {"relative_error": error, "bound": bound, "passes": error < bound and bool(((out != 0) <= kept).all())}
