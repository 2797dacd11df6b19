"""The small problems through which ``kernel_mutants`` runs wrong kernels, in Triton's interpreter."""

# T packed tokens, E embedding width, Q quantities, P programs, D columns

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from unit.ops.interpreted.races import tracing

from megabert.ops.proof.problem import Problem
from megabert.ops.proof.table import PROBLEMS, Shapes, compare_one
from megabert.ops.triton_support import column_sums, table_gradients, tile_sizes

ATTENTION = ("attention", "rotary_attention", "disentangled_attention")
GELU = ("bias_gelu", "gated_gelu")
SMALL: dict[str, Any] = {
    "attention": "dense",
    "hidden": 24,
    "heads": 2,
    "intermediate": 300,
    "classes": 5000,
    "length": 40,
    "reach": 5,
    "span": 8,
    "is_approximate": False,
    "dtype": torch.float32,
}
"""Two heads of 12, which is no power of two; more columns than a tile of GELU's or of the cross-entropy's."""
ONE = {"ASSUMED_MULTIPROCESSORS": 1}
CASES: list[tuple[tuple[str, ...], dict[str, Any], dict[str, Any]]] = [
    (("dropout_keys", "dropout", "cross_entropy", "lamb"), {"hidden": 300}, {}),
    (GELU, {}, ONE),
    (GELU, {"is_approximate": True}, ONE),
    (GELU, {"dtype": torch.float16}, ONE),
    (("lamb",), {"dtype": torch.float16}, {}),
    (("layer_norm",), {"hidden": 200}, {}),
    (("layer_norm",), {"hidden": 200, "attention": "windowed"}, {}),
    (("layer_norm",), {"hidden": 256}, {}),
    (("attention",), {"length": 20}, {}),
    (ATTENTION, {}, {}),
    (ATTENTION[:2], {"dtype": torch.float16, "length": 140, "hidden": 128}, {}),
    (ATTENTION[2:], {"dtype": torch.float16, "length": 70, "hidden": 128}, {}),
    (ATTENTION[:2], {"dtype": torch.float16, "length": 140, "hidden": 128}, {"ASSUMED": (8, 6)}),
]
"""Ops, what differs from SMALL, and globals of ``tile_sizes``: the card that is assumed."""


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
        """Run the right kernels, note their lines and the seconds."""

        def step(frame: Any, event: str, _: Any) -> Any:
            self.reached.add((frame.f_code.co_filename, frame.f_lineno))
            return step

        began = time.process_time()
        sys.settrace(lambda frame, event, _: step if frame.f_code.co_filename.startswith("<megabert.") else None)
        faults = self.run()
        sys.settrace(None)
        self.seconds = time.process_time() - began
        assert not any(faults), f"{self.name}: {faults}"


@contextlib.contextmanager
def assumed(card: dict[str, Any]) -> Iterator[None]:
    """Assume a card: globals of ``tile_sizes``."""
    with mock.patch.multiple(tile_sizes, **card) if card else contextlib.nullcontext():
        tile_sizes.multiprocessors_of.cache_clear()
        tile_sizes.capability_of.cache_clear()
        yield


def trials_of(ops: tuple[str, ...]) -> list[Trial]:
    """Return the problems of some ops, the quickest first."""
    trials = []
    for names, changes, card in CASES:
        for op in [name for name in names if name in ops]:
            shapes = Shapes(**(SMALL | changes))
            with assumed(card):
                problems = PROBLEMS[op](shapes, torch.Generator().manual_seed(0))
            trials += [Trial(op, label, problem, shapes.dtype, card) for label, problem in problems.items()]
    for op, make in SUMS.items():
        if op in ops:
            trials.append(Trial(op, "sums", make(torch.Generator().manual_seed(0)), torch.float32, {}))
    for trial in trials:
        trial.measure()
    return sorted(trials, key=lambda trial: trial.seconds)


def table_problem(generator: torch.Generator) -> Problem:
    """Return the gradient of a table of 9 rows, two of which no token took; ``embedding`` runs its kernel on a GPU."""
    rows_T = torch.randint(0, 7, (100,), generator=generator)
    first_R = torch.cat([rows_T.new_zeros(1), torch.bincount(rows_T, minlength=9).cumsum(0)])

    def run(grad_TE: torch.Tensor, *, backend: str) -> dict[str, torch.Tensor]:
        return {"sums": table_gradients.table_gradient_triton(grad_TE.detach(), rows_T.argsort(stable=True), first_R)}

    def reference(grad_TE: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"sums": grad_TE.new_zeros(9, grad_TE.shape[1]).index_add(0, rows_T, grad_TE.detach())}

    return Problem(run, reference, {"grad_TE": torch.randn(100, 200, generator=generator)})


def partials_problem(generator: torch.Generator) -> Problem:
    """Return sums over more programs than a tile has, which the interpreter's assumed card never starts."""

    def run(partials_QPD: torch.Tensor, *, backend: str) -> dict[str, torch.Tensor]:
        return {"sums": column_sums.column_sums(partials_QPD.detach(), torch.float32)}

    partials_QPD = torch.randn(3, 300, 70, generator=generator)
    return Problem(run, lambda partials_QPD: {"sums": partials_QPD.detach().sum(1)}, {"partials_QPD": partials_QPD})


SUMS = {"embedding": table_problem, "column_sums": partials_problem}
"""Kernels that are no part of an op's problems, or of small ones."""
