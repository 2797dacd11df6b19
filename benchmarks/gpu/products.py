"""The matrix products of a layer in loops, at the limit of power: bfloat16 and fp8, all twelve and the eight alone.

A burst is faster than training: an H100 gave 763 TFLOP/s to the twelve products one by one (results/h100.md), at a
clock that it did not keep. The eight are the forward products and the gradients of data, which fp8 would do; casts are
not in the time. Square products of 8,192 are no measure: K = 1,024 is short, and gradients of weights have few tiles.
"""

# T tokens, M x K times K x N

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from benchmarks.gpu.bars import EIGHT, FP8
from benchmarks.gpu.clock import ms_in_a_loop
from benchmarks.gpu.rows import Row, Rows
from benchmarks.gpu.sizes import Sizes

Product = Callable[[Tensor, Tensor], Callable[[], Tensor]]


def in_16_bits(library: str) -> Product:
    """Return the function that multiplies by a library of torch's choice."""

    def prepare(left: Tensor, right: Tensor) -> Callable[[], Tensor]:
        torch.backends.cuda.preferred_blas_library(library)
        return lambda: left @ right

    return prepare


def in_fp8(left: Tensor, right: Tensor, *, by_row: bool, is_fast: bool = True) -> Callable[[], Tensor]:
    """Return a product of e4m3, with a scale per row of the left side and column of the right one, or one for each.

    Fast sums keep about 14 bits on Hopper. Training has a scale per row and sums that are not fast.
    """
    left8 = left.contiguous().to(torch.float8_e4m3fn)
    right8 = right.t().contiguous().to(torch.float8_e4m3fn).t()
    shapes = ((len(left), 1), (1, right.shape[1])) if by_row else ((), ())
    scale_a, scale_b = (torch.ones(shape, device=left.device) for shape in shapes)
    options = {"scale_a": scale_a, "scale_b": scale_b, "out_dtype": torch.bfloat16, "use_fast_accum": is_fast}
    return lambda: torch._scaled_mm(left8, right8, **options)


KINDS: dict[str, Product] = {
    "bf16 cublas": in_16_bits("cublas"),
    "bf16 cublaslt": in_16_bits("cublaslt"),
    f"{FP8} row-wise": partial(in_fp8, by_row=True),
    f"{FP8} row-wise, float32 sums": partial(in_fp8, by_row=True, is_fast=False),
    f"{FP8} tensor-wise": partial(in_fp8, by_row=False),
}
WAYS = ("forward", "data gradient", "weight gradient")
LOOPS = {EIGHT: (WAYS[:2], tuple(KINDS)), "the twelve in a loop": (WAYS, ("bf16 cublas",))}
"""For each loop its products, and the kinds that run them."""


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


def loop_row(prepare: Product, ways: tuple[str, ...], sizes: Sizes, device: torch.device) -> Row:
    """Return time and rate of the products of a layer, one after the other and again."""
    shapes = [(way, sizes.tokens, *layer) for layer in layers(sizes).values() for way in ways]
    products = [prepare(*operands(*shape, device)) for shape in shapes]

    def run() -> None:
        for product in products:
            product()

    ms = ms_in_a_loop(run, device, seconds=1.0)
    operations = sum(2e-9 * tokens * inputs * outputs for _, tokens, inputs, outputs in shapes)
    return {"ms": round(ms, 4), "tflop_per_s": round(operations / ms, 1)}


def measure(rows: Rows, device: torch.device, sizes: Sizes) -> None:
    """Fill the rows: each loop by each of its kinds. A kind that torch refuses on this machine is a finding."""
    for loop, (ways, kinds) in LOOPS.items():
        for kind in kinds:
            row = partial(loop_row, KINDS[kind], ways, sizes, device)
            rows.measure(f"{sizes.tokens} tokens, {loop}, {kind}", row, is_peer=True)
    if device.type == "cuda":
        torch.backends.cuda.preferred_blas_library("default")
