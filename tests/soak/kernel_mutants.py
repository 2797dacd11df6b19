"""Makes each Triton kernel wrong in one place after another, and asks the first run's problems to find it.

    TRITON_INTERPRET=1 python tests/soak/kernel_mutants.py [MODULE...]           # make soak PART=kernel_mutants: all

A mutant has one number, operator or comparison changed. It runs in Triton's interpreter, in a fork, through the
problems of ``megabert.ops.proof`` that reach its statement, at small shapes, the quickest first, every launch traced by
address, until one finds it. Found are differing values, an error, a crash, a hang, and memory of another program or of
nobody (``races``), which the first run on a device may see only by luck. Any other mutant has its reason in EQUIVALENT,
or shows a gap of the problems.

LOG has a row for each. It is continued: a mutant that was found, in the same text of its function, is not run again.
No mutant is run once the CPU seconds of its rows are above BUDGET_S.
"""

import ast
import contextlib
import hashlib
import importlib
import math
import os
import resource
import select
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton.language as tl
from soak.kernel_trials import Trial, noting, trials_of
from triton.runtime.interpreter import InterpretedFunction
from unit.ops.interpreted import conftest  # noqa: F401  the interpreter's fixes
from unit.ops.interpreted.planted import name_of, planted, text_of

BUDGET_S, LIMIT = 7200, 10
"""CPU seconds of all mutants; how many times those of the right kernel a mutant may take (and 3 s) before it hangs."""
MEMORY = 4 * 2**30
"""Bytes that a mutant may ask for."""
LOG = Path(__file__).parents[2] / "benchmarks" / "soak" / "kernel_mutants.txt"
EQUIVALENT = Path(__file__).with_name("kernel_mutants_equivalent.txt")
MODULES = {
    "lamb.triton": ("lamb",),
    "cross_entropy.triton": ("cross_entropy",),
    "bias_gelu.triton": ("bias_gelu", "fp8_casts"),
    "gated_gelu.triton": ("gated_gelu", "fp8_casts"),
    "triton_support.gelu_functions": ("gated_gelu",),
    "triton_support.dropout_kernels": ("dropout", "dropout_keys"),
    "triton_support.table_gradients": ("embedding",),
    "triton_support.column_sums": ("column_sums",),
    "triton_support.device_functions": ("dropout", "dropout_keys", "gated_gelu", "attention"),
    "triton_support.row_casts": ("fp8_casts", "row_cast"),
    "layer_norm.kernels": ("layer_norm", "fp8_casts"),
    "attention.dense.kernels": ("attention",),
    "attention.dense.backward_kernels": ("attention",),
    "attention.rotary.kernels": ("rotary_attention",),
    "attention.rotary.backward_kernels": ("rotary_attention",),
    "attention.disentangled.kernels": ("disentangled_attention",),
    "attention.disentangled.backward_kernels": ("disentangled_attention",),
}
"""Modules with kernels, and the ops whose problems run them."""
SWAPS: dict[type, type] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitOr, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And, ast.USub: ast.UAdd,
}  # fmt: skip
CALLS = {"maximum": "minimum", "minimum": "maximum", "exp": "exp2", "exp2": "exp", "log": "log2", "log2": "log"}


class Mutant(NamedTuple):
    """A function with one place changed."""

    change: str
    """The expression as it was and as it is, and its number if there are several of them."""
    text: str
    """The whole function."""
    lines: range
    """Lines of the statement in the function as it was."""


def edits(node: ast.AST, constants: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield attributes of a node and what they may be instead."""
    if isinstance(node, ast.BinOp | ast.AugAssign | ast.BoolOp | ast.UnaryOp) and type(node.op) in SWAPS:
        yield "op", SWAPS[type(node.op)]()
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
        yield "ops", [SWAPS[type(node.ops[0])]()]
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield "value", not node.value
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        yield from (("value", node.value + step) for step in (1, -1))
    elif isinstance(node, ast.Constant) and isinstance(node.value, float):
        yield "value", node.value * 1.01 if node.value else 1.0
    elif isinstance(node, ast.Name) and type(getattr(constants.get(node.id), "value", None)) is int:
        yield "id", f"({node.id} + 2)"
    elif isinstance(node, ast.Attribute) and node.attr in CALLS:
        yield "attr", CALLS[node.attr]


def walk(node: ast.AST, lines: range, outer: ast.AST) -> Iterator[tuple[ast.AST, range, ast.AST]]:
    """Yield each node of a function's statements, with the lines of its statement and the expression that names it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.keyword) and child.arg == "axis":
            continue
        if isinstance(child, ast.arguments) or (isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)):
            continue
        if isinstance(child, ast.stmt):
            first = child.body[0].lineno if isinstance(child, ast.If | ast.For | ast.While) else child.end_lineno + 1
            lines = range(child.lineno, max(first, child.lineno + 1))
        named = child if isinstance(child, ast.expr | ast.Assign | ast.AugAssign | ast.Return) else outer
        yield child, lines, outer if isinstance(child, ast.Constant | ast.Name | ast.Attribute) else named
        yield from walk(child, lines, named)


def mutants_of(function: InterpretedFunction) -> Iterator[Mutant]:
    """Yield every mutant of a function."""
    tree, seen = ast.parse(text_of(function)), {}
    constants = {name: value for name, value in function.fn.__globals__.items() if isinstance(value, tl.constexpr)}
    for node, lines, named in list(walk(tree.body[0], range(0), tree)):
        before = ast.unparse(named)
        for attribute, value in edits(node, constants):
            original = getattr(node, attribute)
            setattr(node, attribute, value)
            change = " ".join(f"{before} -> {ast.unparse(named)}".split())
            seen[change] = seen.get(change, 0) + 1
            number = f" #{seen[change]}" if seen[change] > 1 else ""
            yield Mutant(change + number, ast.unparse(tree), lines)
            setattr(node, attribute, original)


def outcome(function: InterpretedFunction, mutant: Mutant, trials: list[Trial]) -> str:
    """Return what the first problem that finds a mutant finds, or ``survived``."""
    lines, result = {(name_of(function), line) for line in mutant.lines}, "survived: not reached"
    for trial in trials:
        if trial.reached & lines:
            result = judge_in_fork(function, mutant, trial)
            if result != "survived":
                break
    return result


def judge_in_fork(function: InterpretedFunction, mutant: Mutant, trial: Trial) -> str:
    """Return what a fork finds of a mutant by one problem, or ``survived``."""
    limit_s = 3 + math.ceil(LIMIT * trial.seconds)
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the C library's words about memory that a mutant has damaged
        resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s))
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
        os.write(writer, judge(function, mutant, trial)[:200].encode())
        os._exit(0)
    os.close(writer)
    select.select([reader], [], [], 20 * limit_s)
    os.kill(child, signal.SIGKILL)
    with open(reader) as pipe:
        result = " ".join(pipe.read().split())
    _, status = os.waitpid(child, 0)
    hung = "hang" if os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL) else "crash"
    return result or f"found: {hung} ({trial.name})"


def judge(function: InterpretedFunction, mutant: Mutant, trial: Trial) -> str:
    """Return what a problem finds of a mutant, or ``survived``."""
    try:
        with planted(function, mutant.text):
            difference, races = trial.run()
    except Exception as error:
        return f"found: error {type(error).__name__}"
    found = difference or (races and f"race, {races}")
    return f"found: {found} ({trial.name})" if found else "survived"


def functions_of(module: str) -> list[InterpretedFunction]:
    """Return the kernels and device functions that a module defines."""
    values = vars(importlib.import_module(f"megabert.ops.{module}")).values()
    functions = [value for value in values if isinstance(value, InterpretedFunction)]
    return [function for function in functions if function.fn.__module__ == f"megabert.ops.{module}"]


def read_log() -> dict[tuple[str, ...], list[str]]:
    """Return the last row of each mutant, by function, its text's digest, and change."""
    rows = [line.split("\t") for line in LOG.read_text().splitlines()] if LOG.exists() else []
    return {tuple(row[1:4]): row for row in rows}


def read_equivalent() -> dict[tuple[str, str], str]:
    """Return the reasons of mutants that are no faults, by function and change."""
    rows = [line.split("\t") for line in EQUIVALENT.read_text().splitlines() if not line.startswith("#")]
    return {(function, change): reason for function, change, reason in rows}


def judge_module(module: str) -> dict[str, list[str]]:
    """Run the mutants of a module that the log does not have, and return the mutants of each outcome."""
    reasons = {key: reason for key, reason in read_equivalent().items() if key[0].rpartition(".")[0] == module}
    outcomes: dict[str, list[str]] = {"found": [], "equivalent": [], "survived": [], "not judged": []}
    log, to_run = read_log(), []
    for function in functions_of(module):
        name, text = f"{module}.{function.fn.__name__}", text_of(function)
        for mutant in mutants_of(function):
            key = (name, hashlib.sha256(text.encode()).hexdigest()[:8], mutant.change)
            if reasons.pop((name, mutant.change), None):
                outcomes["equivalent"].append(mutant.change)
            elif log.get(key, [""])[0] == "found":
                outcomes["found"].append(mutant.change)
            else:
                to_run.append((key, function, mutant))
    assert not reasons, f"{EQUIVALENT.name} names mutants that do not exist: {[*reasons]}"
    # In no order of the text: what is judged before the time is over is a sample of all.
    to_run.sort(key=lambda row: hashlib.sha256(str(row[0]).encode()).digest())
    for key, result in run_mutants(module, to_run, BUDGET_S - sum(float(row[4]) for row in log.values())):
        outcomes[result].append(f"{key[0]}: {key[2]}")
    return outcomes


def run_mutants(module: str, to_run: list[Any], budget_s: float) -> Iterator[tuple[tuple[str, ...], str]]:
    """Run some mutants as long as there is time, add each to the log, and yield key and outcome."""
    with contextlib.ExitStack() as stack, LOG.open("a") as file:
        if to_run and budget_s > 0:
            for other in (each for known in MODULES for each in functions_of(known)):
                stack.enter_context(planted(other, noting(other)))
            trials = trials_of(MODULES[module])
        for key, function, mutant in to_run:
            result = "not judged"
            if budget_s > 0:
                began = sum(os.times()[:4])
                result, _, by = outcome(function, mutant, trials).partition(":")
                seconds = sum(os.times()[:4]) - began
                budget_s -= seconds
                file.write("\t".join([result, *key, f"{seconds:.1f}", by.strip()]) + "\n")
                file.flush()
            yield key, result


if __name__ == "__main__":
    torch.set_num_threads(1)
    os.nice(15)
    survived = 0
    for module in sys.argv[1:] or MODULES:
        outcomes = judge_module(module)
        print(module, *(f"{len(mutants)} {name}" for name, mutants in outcomes.items()), sep=", ", flush=True)
        print(*(f"    {mutant}" for mutant in outcomes["survived"]), sep="\n", flush=True)
        survived += len(outcomes["survived"])
    sys.exit(survived > 0)
