"""Compile every kernel for AMD's cards, which are not there, and print which do. A program; needs triton, no GPU.

    python tests/unit/ops/compiled_for_amd.py [--cards gfx942,gfx90a] [--only attention]

Kernels are as on a ROCm build of torch: without NVIDIA's assembly. Each is compiled in a fork, because AMD's compiler
ends the process over an error.
"""

import argparse
import json
import os
import re
from unittest import mock

import torch
import triton.language as tl
from compiled_resources import compile_launch
from launched_ops import cases
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from megabert.ops.triton_support import device_functions, tile_sizes

CARDS = {"gfx942": 64, "gfx90a": 64, "gfx1100": 32}
"""Lanes of a wave by card: MI300, MI200, RX 7900."""


def compiled(target: GPUTarget, function, args, options) -> dict:
    """Return what a kernel takes: vector registers, those that spill, bytes of shared memory, matrix instructions."""
    kernel = compile_launch(target, function, args, options)
    text = kernel.asm["amdgcn"]
    registers, spilled = (int(re.search(rf"\.{name}:\s+(\d+)", text)[1]) for name in ("vgpr_count", "vgpr_spill_count"))
    matrix = len(re.findall("v_w?mma|v_mfma", text))
    return {"registers": registers, "spilled": spilled, "shared": kernel.metadata.shared, "matrix": matrix}


def in_fork(work, *arguments) -> dict:
    """Return the result of a call in a fork, or its error."""
    reading, writing = os.pipe()
    if not (child := os.fork()):
        try:
            result = work(*arguments)
        except Exception as error:
            result = {"error": f"{type(error).__name__}: {error}"[:300]}
        os.write(writing, json.dumps(result).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else {"error": "the compiler ended the process"}


def compile_all(card: str, only: str) -> dict[str, dict]:
    """Return what each kernel takes on a card, or its error, and print it."""
    taken: dict[str, dict] = {}
    target, case = GPUTarget("hip", card, CARDS[card]), [""]

    def run(function, *args, grid, warmup, **options):
        name = f"{function.fn.__name__} {case[0]}"
        taken[name] = in_fork(compiled, target, function, args, options)
        print(card, name, json.dumps(taken[name]), flush=True)

    with (
        mock.patch.object(JITFunction, "run", run),
        mock.patch.object(device_functions, "HAS_PTX", tl.constexpr(False)),
        mock.patch.object(tile_sizes, "ASSUMED", tile_sizes.UNKNOWN),
        mock.patch.object(tile_sizes, "ASSUMED_MULTIPROCESSORS", 304),
    ):
        tile_sizes.capability_of.cache_clear()
        tile_sizes.multiprocessors_of.cache_clear()
        for label, op, inputs in cases(False):
            if only in op.__name__:
                case[0] = label
                op(*inputs)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cards", default=",".join(CARDS))
    parser.add_argument("--only", default="", help="ops whose name contains this")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for card in arguments.cards.split(","):
        taken = compile_all(card, arguments.only)
        failed = [name for name, result in taken.items() if "error" in result]
        print(f"{card}: {len(taken) - len(failed)} of {len(taken)} compile")


if __name__ == "__main__":
    main()
