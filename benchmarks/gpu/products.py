"""The twelve matrix products of a layer at their real shapes: they decide whether 16 bits suffice (../notes.md).

A square product of 8,192 runs at a rate that these shapes do not reach: K = 1,024 is short, and weight gradients have
few tiles. Each is taken as autograd calls it, in bfloat16 by both of cuBLAS's libraries, with a float32 result as
weight gradients that accumulate would have it, and in fp8 with a scale for each row, whose casts are not in the time.

These are rates of bursts. In bfloat16 the twelve run in a loop as well, for seconds: an H100 lowers its clock by then.
"""

# T tokens, M x K times K x N

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.gpu.bars import LOOP
from benchmarks.gpu.clock import median_ms, ms_in_a_loop
from benchmarks.gpu.rows import Row, Rows
from benchmarks.gpu.sizes import Sizes
from megabert.ops.dense import add_product_

Product = Callable[[Tensor, Tensor], Callable[[], Tensor]]


def in_16_bits(library: str) -> Product:
    """Return what multiplies by a library of torch's choice."""

    def prepare(left: Tensor, right: Tensor) -> Callable[[], Tensor]:
        torch.backends.cuda.preferred_blas_library(library)
        return lambda: left @ right

    return prepare


def to_float32(left: Tensor, right: Tensor) -> Callable[[], Tensor]:
    """Return a product of bfloat16 whose sums are not rounded to it."""
    torch.backends.cuda.preferred_blas_library("cublas")
    return lambda: torch.mm(left, right, out_dtype=torch.float32)


def in_fp8(left: Tensor, right: Tensor) -> Callable[[], Tensor]:
    """Return a product of e4m3 with a scale a row of the left side and a column of the right one."""
    left8 = left.contiguous().to(torch.float8_e4m3fn)
    right8 = right.t().contiguous().to(torch.float8_e4m3fn).t()
    rows = torch.ones(left.shape[0], 1, device=left.device)
    columns = torch.ones(1, right.shape[1], device=left.device)
    options = {"scale_a": rows, "scale_b": columns, "out_dtype": torch.bfloat16, "use_fast_accum": True}
    return lambda: torch._scaled_mm(left8, right8, **options)


def into_float32(left: Tensor, right: Tensor) -> Callable[[], Tensor]:
    """Return a product of bfloat16 that is added to a float32 matrix, as weight gradients are."""
    torch.backends.cuda.preferred_blas_library("cublas")
    total = torch.zeros(left.shape[0], right.shape[1], device=left.device)

    def run() -> Tensor:
        add_product_(total, left, right, is_first=False)
        return total

    return run


KINDS: dict[str, Product] = {
    "bf16 cublas": in_16_bits("cublas"),
    "bf16 cublaslt": in_16_bits("cublaslt"),
    "bf16 to float32": to_float32,
    "bf16 added to float32": into_float32,
    "fp8 row-wise": in_fp8,
}
WEIGHTS_ONLY = {"bf16 added to float32"}
"""Kinds that are taken of gradients of weights alone."""
LOOPED = {"bf16 cublas", "bf16 cublaslt"}
"""Kinds whose rate in a loop decides the next version."""
WAYS = ("forward", "data gradient", "weight gradient")


def layers(sizes: Sizes) -> dict[str, tuple[int, int]]:
    """Return inputs and outputs of a layer's four dense layers."""
    hidden, inner = sizes.hidden, sizes.intermediate
    return {
        "QKV": (hidden, 3 * hidden),
        "attention output": (hidden, hidden),
        "feed-forward in": (hidden, inner),
        "feed-forward out": (inner, hidden),
    }


def operands(way: str, tokens: int, inputs: int, outputs: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return both sides of a product in the layouts that autograd has: x (T, K), dy (T, N), weight (N, K)."""

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device).to(torch.bfloat16)

    if way == "forward":
        return random(tokens, inputs), random(outputs, inputs).t()
    if way == "data gradient":
        return random(tokens, outputs), random(outputs, inputs)
    return random(tokens, outputs).t(), random(tokens, inputs)


def product_row(prepare: Product, left: Tensor, right: Tensor) -> Row:
    """Return time and rate of one product."""
    ms = median_ms(prepare(left, right), left.device, repeat_ms=25)
    return {"ms": round(ms, 4), "tflop_per_s": round(2e-9 * left.shape[0] * left.shape[1] * right.shape[1] / ms, 1)}


def loop_row(prepare: Product, tokens: int, sizes: Sizes, device: torch.device) -> Row:
    """Return time and rate of the twelve, one after the other and again."""
    shapes = [(way, tokens, *layer) for layer in layers(sizes).values() for way in WAYS]
    products = [prepare(*operands(*shape, device)) for shape in shapes]

    def run() -> None:
        for product in products:
            product()

    ms = ms_in_a_loop(run, device)
    operations = sum(2e-9 * tokens * inputs * outputs for _, tokens, inputs, outputs in shapes)
    return {"ms": round(ms, 4), "tflop_per_s": round(operations / ms, 1)}


def measure(rows: Rows, device: torch.device, sizes: Sizes) -> None:
    """Fill the rows: every shape and way by each kind, then the mean of the twelve, which says what a layer costs."""
    for kind, prepare in KINDS.items():
        for tokens in sizes.product_tokens:
            found = []
            for layer, (inputs, outputs) in layers(sizes).items():
                for way in ("weight gradient",) if kind in WEIGHTS_ONLY else WAYS:
                    shape = (way, tokens, inputs, outputs)
                    # What torch refuses on this machine is a finding, not a failure.
                    row = rows.measure(
                        f"{tokens} tokens, {layer} {way}, {kind}",
                        lambda prepare=prepare, shape=shape: product_row(prepare, *operands(*shape, device)),
                        is_peer=True,
                    )
                    row = row or {}
                    if "ms" in row:
                        found.append((row["ms"], 2e-9 * tokens * inputs * outputs))
            if len(found) == 12:
                ms, operations = (sum(column) for column in zip(*found, strict=True))
                mean = {"ms": round(ms, 4), "tflop_per_s": round(operations / ms, 1)}
                rows.measure(f"{tokens} tokens, mean of the twelve, {kind}", lambda mean=mean: mean)
            if kind in LOOPED:
                loop = functools.partial(loop_row, prepare, tokens, sizes, device)
                rows.measure(f"{tokens} tokens, {LOOP}, {kind}", loop, is_peer=True)
    if device.type == "cuda":
        torch.backends.cuda.preferred_blas_library("default")
