"""Compile every kernel for cards that are not there and print what each takes. A program; needs triton, no GPU.

    python tests/unit/ops/compiled_resources.py [--all] [--cards 80,90] [--only attention]     JSON
    python tests/unit/ops/compiled_resources.py --write-budget                                 kernel_budget.json anew

The ops run on meta tensors with Triton's launch replaced by a compilation for a named card, so that kernels get exactly
the constants, types and divisibility of a real launch.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

import triton
from inner_loop import CUOBJDUMP, disassembled, left_in_flight, loops_of, per_element
from launched_ops import cases
from simulated_cycles import cycles_of, simulated_cycles
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

CARDS = (80, 86, 89, 90, 100, 120)
BUDGET = Path(__file__).parent / "kernel_budget.json"
LOOPS = (
    "attention_forward",
    "attention_backward",
    "rotary_attention_forward",
    "rotary_attention_backward_queries",
    "rotary_attention_backward_keys",
    "disentangled_attention_forward",
    "disentangled_attention_backward_keys",
    "disentangled_attention_backward_queries",
)
"""Kernels whose inner loop is counted on sm_90, and whose cycles are simulated on the cards of the predictions."""
SIMULATED = (80, 90)


def resources(kernel) -> dict[str, int | None]:
    """Registers and stack of a thread, shared memory of a block in bytes, copies in flight while a loop waits."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
        cubin.write(kernel.asm["cubin"])
        cubin.flush()
        command = [CUOBJDUMP, "--dump-resource-usage", cubin.name]
        report = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    numbers = {key: int(re.search(rf"{key}:(\d+)", report)[1]) for key in ("REG", "STACK", "LOCAL")}
    return {
        "registers": numbers["REG"],
        "stack": numbers["STACK"] + numbers["LOCAL"],
        "shared": kernel.metadata.shared,
        "warps": kernel.metadata.num_warps,
        "in_flight": left_in_flight(kernel.asm["ttgir"]),
        "casts": kernel.asm["ptx"].count("cvt.rn.satfinite.e4m3x2.f32"),
    }


def compile_launch(target: GPUTarget, function, args, options):
    """Return a kernel compiled for a card that is not there, exactly as a launch with these arguments compiles it."""
    backend = make_backend(target)
    options |= {"debug": False, "instrumentation_mode": ""}
    binder = create_function_from_signature(function.signature, function.params, backend)
    bound, specialization, rest = binder(*args, **options)
    parsed, signature, constants, attributes = function._pack_args(backend, options, bound, specialization, rest)
    return triton.compile(ASTSource(function, signature, constants, attributes), target=target, options=parsed.__dict__)


class Compiler:
    """Stands in for Triton's launch."""

    def __init__(self, card: int, stages: int | None = None, *, counts: bool = True):
        self.card, self.stages, self.counts = card, stages, counts
        self.label = ""
        self.resources: dict[str, dict] = {}

    def run(self, function, *args, grid, warmup, **options):
        """Compile what would be launched."""
        options |= {"num_stages": self.stages} if self.stages else {}
        kernel = compile_launch(GPUTarget("cuda", self.card, 32), function, args, options)
        name = f"{function.fn.__name__} {self.label}"
        taken = self.resources[name] = resources(kernel)
        if self.counts and self.card in SIMULATED and function.fn.__name__ in LOOPS:
            numbers = {key: taken[key] for key in ("warps", "registers", "shared")}
            stages = kernel.metadata.num_stages
            text = disassembled(kernel.asm["cubin"])
            taken["cycles"] = simulated_cycles(text, card=self.card, stages=stages, **numbers)
        if self.counts and self.card == 90 and function.fn.__name__ in LOOPS:
            elements = options["ROWS"] * options["COLUMNS"] / (32 * kernel.metadata.num_warps)
            taken["loop"] = per_element(kernel.asm["cubin"], elements=elements)


def compile_all(card: int, *, everything: bool, only: str, stages: int | None = None) -> dict[str, dict]:
    """Return what each kernel takes on one card, with other stages than its own if they are given."""
    from megabert.ops.triton_support import tile_sizes as tiles

    # Only kernels of the budget are counted: products in float32 have no matrix instruction to count.
    compiler = Compiler(card, stages, counts=not everything)
    with (
        mock.patch.object(
            JITFunction, "run", lambda function, *args, **options: compiler.run(function, *args, **options)
        ),
        mock.patch.object(tiles, "ASSUMED", divmod(card, 10)),
        mock.patch.object(tiles, "ASSUMED_MULTIPROCESSORS", 108),
    ):
        tiles.capability_of.cache_clear()
        for label, op, arguments in cases(everything):
            # Cards before sm_89 have no instruction that casts to e4m3.
            if only in f"{op.__name__} {label}" and (card >= 89 or not label.endswith("fp8")):
                compiler.label = label
                op(*arguments)
    return compiler.resources


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="every dtype and shape")
    parser.add_argument("--cards", default=",".join(map(str, CARDS)))
    parser.add_argument("--only", default="", help="ops whose name and label contain this")
    parser.add_argument("--stages", type=int, help="stages in place of each kernel's own")
    parser.add_argument("--write-budget", action="store_true")
    arguments = parser.parse_args()
    assert os.environ.get("TRITON_INTERPRET") != "1", "the interpreter's kernels cannot be compiled"
    table: dict[str, dict[str, dict]] = {}
    for card in map(int, arguments.cards.split(",")):
        for name, taken in compile_all(
            card, everything=arguments.all, only=arguments.only, stages=arguments.stages
        ).items():
            table.setdefault(name, {})[str(card)] = taken
    if arguments.write_budget:
        write_budget(table)
    else:
        json.dump(table, sys.stdout, indent=1)


def write_budget(table: dict) -> None:
    """Registers are rounded up to 8, which is how a card deals them out. Reasons for waiting are kept."""

    def limits(taken: dict) -> list:
        return [-(-taken["registers"] // 8) * 8, taken["stack"], taken["shared"], taken["in_flight"]]

    head = {"triton": triton.__version__, "columns": ["registers", "stack bytes", "shared bytes", "in flight"]}
    head["cycle columns"] = ["clocks of a pass but for its tiles", "clocks of a tile"]
    head["loop columns"] = ["instructions an element", "those of the ALU pipe", "matrix instructions of the old kind"]
    waits = "waits with nothing in flight"
    sections = {
        waits: json.loads(BUDGET.read_text())[waits],
        "kernels": {name: {card: limits(taken) for card, taken in cards.items()} for name, cards in table.items()},
        "loops": {name: list(loop.values()) for name, loop in loops_of(table).items()},
        "cycles": cycles_of(table),
    }
    text = json.dumps(head)[:-1]
    for section, rows in sections.items():
        lines = (f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
        text += f", {json.dumps(section)}: {{\n" + ",\n".join(lines) + "\n}"
    BUDGET.write_text(text + "}\n")


if __name__ == "__main__":
    main()
