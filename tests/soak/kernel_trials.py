"""The small problems through which ``kernel_mutants`` runs wrong kernels, in Triton's interpreter."""

# T packed tokens, Q quantities, P programs, D columns

import ast
import contextlib
import functools
import time
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from triton.runtime.interpreter import InterpretedFunction
from unit.ops.interpreted.planted import name_of, text_of
from unit.ops.interpreted.races import tracing

from megabert.ops import fp8
from megabert.ops.proof.problem import Op, Problem
from megabert.ops.proof.problems import attention_problem
from megabert.ops.proof.table import PROBLEMS, Shapes, compare_one
from megabert.ops.triton_support import column_sums, row_casts, tile_sizes

ATTENTION = ("attention", "rotary_attention", "disentangled_attention")
GELU = ("bias_gelu", "gated_gelu")
SMALL: dict[str, Any] = {
    "attention": "dense",
    "hidden": 24,
    "heads": 2,
    "intermediate": 300,
    "classes": 5000,
    "length": 52,
    "reach": 5,
    "span": 8,
    "is_approximate": False,
    "dtype": torch.float32,
}
"""Two heads of 12, which is no power of two; more columns than a tile of GELU's or of the cross-entropy's. Sequences of
52 and 5/8 of that, 32, which fills a tile of attention's; so do 32 below, and 5/8 of 205 and 103."""
ONE = {"ASSUMED_MULTIPROCESSORS": 1}
CASES: list[tuple[tuple[str, ...], dict[str, Any], dict[str, Any]]] = [
    (("dropout_keys", "dropout", "cross_entropy", "lamb"), {"hidden": 300}, {}),
    (GELU, {}, ONE),
    (GELU, {"is_approximate": True}, ONE),
    (GELU, {"dtype": torch.float16}, ONE),
    (GELU, {"dtype": torch.float16, "intermediate": 40}, ONE),
    (("lamb",), {"dtype": torch.float16}, {}),
    (("embedding", "layer_norm"), {"hidden": 200}, {}),
    (("layer_norm",), {"hidden": 200, "attention": "windowed"}, {}),
    (("layer_norm",), {"hidden": 256}, {}),
    (("fp8_casts",), {"hidden": 200, "dtype": torch.bfloat16}, ONE),
    (("fp8_casts",), {"hidden": 256, "dtype": torch.bfloat16, "attention": "windowed"}, ONE),
    (("fp8_casts",), {"intermediate": 24, "dtype": torch.bfloat16, "attention": "windowed"}, ONE),
    (ATTENTION, {"length": 32}, {}),
    (("attention",), {"length": 33, "hidden": 136}, {}),
    (ATTENTION, {}, {}),
    (ATTENTION[:2], {"dtype": torch.float16, "length": 205, "hidden": 112, "reach": 70}, {}),
    (ATTENTION[2:], {"dtype": torch.float16, "length": 103, "hidden": 112}, {}),
    (ATTENTION[:2], {"dtype": torch.float16, "length": 205, "hidden": 112}, {"ASSUMED": (8, 6)}),
]
"""Ops, what differs from SMALL, and globals of ``tile_sizes``: the card that is assumed."""
REACHED: set[tuple[str, int]] = set()
"""Functions and lines that have run, of those that are planted as ``noting`` has them."""
LONGEST_OF_MASKS = 33
"""Tokens above which attention's masks alone take seconds; a wrong mask changes the values as well."""


class Trial:
    """A small problem on a card that is assumed."""

    def __init__(self, op: str, label: str, problem: Problem, dtype: torch.dtype, card: dict[str, Any]) -> None:
        self.name = f"{op} {label} {str(dtype).removeprefix('torch.')}"
        self.reached: set[tuple[str, int]] = set()
        """Functions and their lines that it runs."""
        self.seconds = 0.0
        self._arguments, self._card = (op, label, problem, "triton", dtype), card

    def run(self) -> tuple[str, str]:
        """Return how the kernels differ, and which accesses are races; empty if they do not and none is."""
        with assumed(self._card), tracing() as trace:
            row = compare_one(*self._arguments)
        difference = f"error {row.failure}" if row.failure else f"values {row.worst} {row.error:.2g}"
        races = "; ".join(fault for faults in trace.faults.values() for fault in faults)
        return "" if row.passes else difference, races

    def measure(self) -> None:
        """Run the right kernels, as ``noting`` has them, and keep the lines and the seconds."""
        REACHED.clear()
        began = time.process_time()
        faults = self.run()
        self.seconds, self.reached = time.process_time() - began, set(REACHED)
        assert not any(faults), f"{self.name}: {faults}"


def noting(function: InterpretedFunction) -> str:
    """Return the text of a function each of whose statements adds its first line to REACHED."""

    def note(statement: ast.stmt) -> ast.stmt:
        return ast.parse(f"REACHED.add(({name_of(function)!r}, {statement.lineno}))").body[0]

    tree = ast.parse(text_of(function))
    for node in ast.walk(tree):
        for field in ("body", "orelse"):
            if isinstance(statements := getattr(node, field, None), list):
                statements[:] = [each for line in statements for each in (note(line), line)]
    function.fn.__globals__["REACHED"] = REACHED
    return ast.unparse(tree)


@contextlib.contextmanager
def assumed(card: dict[str, Any]) -> Iterator[None]:
    """Assume a card: globals of ``tile_sizes``."""
    with mock.patch.multiple(tile_sizes, **card) if card else contextlib.nullcontext():
        tile_sizes.multiprocessors_of.cache_clear()
        tile_sizes.capability_of.cache_clear()
        yield


def trials_of(ops: tuple[str, ...]) -> list[Trial]:
    """Return the problems of some ops, the quickest first."""
    return sorted((trial for op in ops for trial in trials_of_op(op)), key=lambda trial: trial.seconds)


@functools.cache
def trials_of_op(op: str) -> list[Trial]:
    """Return the measured problems of an op."""
    trials = []
    for _, changes, card in [case for case in CASES if op in case[0]]:
        shapes = Shapes(**(SMALL | changes))
        with assumed(card):
            problems = PROBLEMS[op](shapes, torch.Generator().manual_seed(0))
        if op in ATTENTION and shapes.length > LONGEST_OF_MASKS:
            problems = {label: problem for label, problem in problems.items() if "mask" not in label}
        trials += [Trial(op, label, problem, shapes.dtype, card) for label, problem in problems.items()]
    if op in OTHERS:
        label, make = OTHERS[op]
        trials.append(Trial(op, label, make(torch.Generator().manual_seed(0)), torch.float32, {}))
    for trial in trials:
        trial.measure()
    return trials


def partials_problem(generator: torch.Generator) -> Problem:
    """Return sums over more programs than a tile has, which the interpreter's assumed card never starts."""

    def run(partials_QPD: torch.Tensor, *, backend: str) -> dict[str, torch.Tensor]:
        return {"sums": column_sums.column_sums(partials_QPD.detach(), torch.float32)}

    partials_QPD = torch.randn(3, 300, 70, generator=generator)
    return Problem(run, lambda partials_QPD: {"sums": partials_QPD.detach().sum(1)}, {"partials_QPD": partials_QPD})


def row_cast_problem(generator: torch.Generator) -> Problem:
    """Return casts of rows of all sizes, one of zeros and one with an infinity, which ``row_cast`` makes on a GPU.

    There is no room past the end, and the last program has rows that are not there.
    """
    x_RK = torch.randn(48, 24, generator=generator) * torch.logspace(-30, 30, 48)[:, None]
    x_RK[7], x_RK[9, 3] = 0, torch.inf

    def run(x_RK: torch.Tensor, *, backend: str) -> dict[str, torch.Tensor]:
        values, scales = row_casts.cast_rows_triton(x_RK.detach())
        return {"values": values.view(torch.uint8), "scales": scales.view(torch.int32)}

    def reference(x_RK: torch.Tensor) -> dict[str, torch.Tensor]:
        values, scales = fp8.cast_rows(x_RK.detach().float())
        return {"values": values.view(torch.uint8), "scales": scales.view(torch.int32)}

    return Problem(run, reference, {"x_RK": x_RK}, {torch.float32: 0.0})


def rooms_problem(generator: torch.Generator) -> Problem:
    """Return contexts of sequences whose rooms in ``lse`` would meet, or end too late, if they were a little off."""
    problem = attention_problem([321, *[1] * 25], generator, heads=1, head_width=16, dropout=0.0)

    def forward(op: Op, **arguments: Any) -> dict[str, Any]:
        with torch.no_grad():
            return {"out": op(**arguments)}

    run, reference = (functools.partial(forward, op) for op in (problem.run, problem.reference))
    return Problem(run, reference, problem.tensors)


OTHERS = {
    "column_sums": ("sums", partials_problem),
    "row_cast": ("rows", row_cast_problem),
    "attention": ("rooms", rooms_problem),
}
"""Problems of kernels, or of what they do, that are no part of an op's problems, or of small ones."""
