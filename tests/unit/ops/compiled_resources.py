"""Compile every kernel for cards that are not there and print what each takes. A program; needs triton, no GPU.

    python tests/unit/ops/compiled_resources.py [--all] [--cards 80,90] [--only attention]     JSON
    python tests/unit/ops/compiled_resources.py --markdown                                     the table of resources.md
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

import torch
import triton
from inner_loop import CUOBJDUMP, disassembled, left_in_flight, loops_of, per_element
from simulated_cycles import cycles_of, simulated_cycles
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

CARDS = (80, 86, 89, 90, 100, 120)
BUDGET = Path(__file__).parent / "kernel_budget.json"
TOKENS = 16_384
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
    }


class Compiler:
    """Stands in for Triton's launch."""

    def __init__(self, card: int, stages: int | None = None):
        self.card, self.stages = card, stages
        self.label = ""
        self.resources: dict[str, dict] = {}

    def run(self, function, *args, grid, warmup, **options):
        """Compile what would be launched."""
        target = GPUTarget("cuda", self.card, 32)
        backend = make_backend(target)
        options |= {"debug": False, "instrumentation_mode": ""} | ({"num_stages": self.stages} if self.stages else {})
        binder = create_function_from_signature(function.signature, function.params, backend)
        bound, specialization, rest = binder(*args, **options)
        parsed, signature, constants, attributes = function._pack_args(backend, options, bound, specialization, rest)
        source = ASTSource(function, signature, constants, attributes)
        kernel = triton.compile(source, target=target, options=parsed.__dict__)
        name = f"{function.fn.__name__} {self.label}"
        taken = self.resources[name] = resources(kernel)
        if self.card in SIMULATED and function.fn.__name__ in LOOPS:
            numbers = {key: taken[key] for key in ("warps", "registers", "shared")}
            stages = kernel.metadata.num_stages
            text = disassembled(kernel.asm["cubin"])
            taken["cycles"] = simulated_cycles(text, card=self.card, stages=stages, **numbers)
        if self.card == 90 and function.fn.__name__ in LOOPS:
            elements = options["ROWS"] * options["COLUMNS"] / (32 * kernel.metadata.num_warps)
            taken["loop"] = per_element(kernel.asm["cubin"], elements=elements)


def meta(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta", requires_grad=dtype.is_floating_point)


def layer_norm(dtype: torch.dtype, width: int, dropout: bool) -> None:
    from megabert.ops.dropout import Dropout
    from megabert.ops.layer_norm.triton import layer_norm_triton

    site = Dropout(0.1, meta(TOKENS, dtype=torch.int32)) if dropout else None
    x, residual = meta(TOKENS, width, dtype=dtype), meta(TOKENS, width, dtype=dtype)
    weight, bias, input_bias = (meta(width, dtype=dtype) for _ in range(3))
    twice = layer_norm_triton(x, weight, bias, input_bias, residual, 1e-12, site, False)
    torch.autograd.backward(twice, [torch.empty_like(y) for y in twice])


def add_layer_norm(dtype: torch.dtype, width: int, dropout: bool) -> None:
    from megabert.ops.dropout import Dropout
    from megabert.ops.layer_norm.triton import layer_norm_triton

    site = Dropout(0.1, meta(TOKENS, dtype=torch.int32)) if dropout else None
    x, residual = meta(TOKENS, width, dtype=dtype), meta(TOKENS, width, dtype=dtype)
    twice = layer_norm_triton(x, meta(width, dtype=dtype), None, None, residual, 1e-5, site, True)
    torch.autograd.backward(twice, [torch.empty_like(y) for y in twice])


def keyed_dropout(dtype: torch.dtype, width: int) -> None:
    from megabert.ops.dropout import Dropout
    from megabert.ops.triton_support.dropout_kernels import dropped_triton, row_keys_triton

    keys = row_keys_triton(meta(TOKENS, dtype=torch.int32), 7)
    dropped_triton(meta(TOKENS, width, dtype=dtype), Dropout(0.1, keys))


def embedding(dtype: torch.dtype, width: int, rows: int) -> None:
    from megabert.ops.triton_support.table_gradients import table_gradient_triton

    order, first = meta(TOKENS, dtype=torch.int64), meta(rows + 1, dtype=torch.int64)
    table_gradient_triton(meta(TOKENS, width, dtype=dtype).detach(), order, first)


def bias_gelu(dtype: torch.dtype, width: int, approximate: bool) -> None:
    from megabert.ops.bias_gelu.triton import bias_gelu_triton

    out = bias_gelu_triton(meta(TOKENS, width, dtype=dtype), meta(width, dtype=dtype), approximate=approximate)
    out.backward(torch.empty_like(out))


def gated_gelu(dtype: torch.dtype, width: int, approximate: bool) -> None:
    from megabert.ops.gated_gelu.triton import gated_gelu_triton

    out = gated_gelu_triton(meta(TOKENS, 2 * width, dtype=dtype), approximate=approximate)
    out.backward(torch.empty_like(out))


def attention(
    dtype: torch.dtype, max_seqlen: int, heads: int, head_width: int, dropout: bool, sequences: int = 128
) -> None:
    from megabert.ops.attention.dense.cpu import DenseSequences
    from megabert.ops.attention.dense.triton import attention_triton
    from megabert.ops.attention.dropout import AttentionDropout

    seeds, constants = meta(sequences, dtype=torch.int32), meta(heads, dtype=torch.int32)
    site = AttentionDropout(0.1, seeds, constants) if dropout else None
    out = attention_triton(
        meta(TOKENS, 3 * heads * head_width, dtype=dtype),
        DenseSequences(meta(sequences + 1, dtype=torch.int32), max_seqlen),
        num_heads=heads,
        dropout=site,
        bias_C=meta(3 * heads * head_width, dtype=dtype),
    )
    out.backward(torch.empty_like(out))


def rotary_attention(dtype: torch.dtype, reach: int | None, heads: int, head_width: int, dropout: bool) -> None:
    from megabert.ops.attention.dropout import AttentionDropout
    from megabert.ops.attention.rotary.cpu import RotarySequences
    from megabert.ops.attention.rotary.triton import rotary_attention_triton

    seeds, constants = meta(32, dtype=torch.int32), meta(heads, dtype=torch.int32)
    sequences = RotarySequences(meta(33, dtype=torch.int32), 8192, meta(8192, dtype=torch.int64))
    out = rotary_attention_triton(
        meta(TOKENS, 3 * heads * head_width, dtype=dtype),
        torch.empty(8192, 2, head_width // 2, device="meta"),
        sequences,
        reach=reach,
        num_heads=heads,
        dropout=AttentionDropout(0.1, seeds, constants) if dropout else None,
    )
    out.backward(torch.empty_like(out))


def disentangled_attention(
    dtype: torch.dtype, heads: int, head_width: int, dropout: bool, terms: tuple[str, ...] = ("c2p", "p2c")
) -> None:
    from megabert.ops.attention.disentangled.cpu import DisentangledSequences, RelativePositions
    from megabert.ops.attention.disentangled.triton import disentangled_attention_triton
    from megabert.ops.attention.dropout import AttentionDropout

    seeds, constants = meta(128, dtype=torch.int32), meta(heads, dtype=torch.int32)
    key_PD, query_PD = (
        meta(511, heads * head_width, dtype=dtype) if term in terms else None for term in ("c2p", "p2c")
    )
    out = disentangled_attention_triton(
        meta(TOKENS, 3 * heads * head_width, dtype=dtype),
        RelativePositions(key_PD, query_PD, meta(1023, dtype=torch.int32)),
        DisentangledSequences(meta(129, dtype=torch.int32), 512),
        num_heads=heads,
        dropout=AttentionDropout(0.1, seeds, constants) if dropout else None,
    )
    out.backward(torch.empty_like(out))


def cross_entropy(dtype: torch.dtype, classes: int) -> None:
    from megabert.ops.cross_entropy.triton import cross_entropy_triton

    losses, _ = cross_entropy_triton(meta(2560, classes, dtype=dtype), meta(2560, dtype=torch.int64))
    losses.sum().backward()


def lamb(measures_gradient: bool) -> None:
    from megabert.ops.lamb import Coefficients, SlotFragment
    from megabert.ops.lamb.triton import apply_update, compute_update

    flats = [torch.empty(1 << 20, device="meta") for _ in range(4)]
    squares = torch.empty(2, 400, dtype=torch.float64, device="meta")
    coefficients = Coefficients(
        beta1=0.9, beta2=0.999, eps=1e-6, weight_decay=0.01, measures_gradient=measures_gradient
    )
    fragments = [SlotFragment(0, 1 << 19, 7), SlotFragment(1 << 19, 1000, 8)]
    compute_update(*flats, coefficients=coefficients, fragments=fragments, squares=squares)
    rounded = torch.empty(1 << 20, dtype=torch.bfloat16, device="meta")
    apply_update(flats[0], flats[1], fragments=fragments, scales=squares[0], rounded=rounded)


def cases(everything: bool):
    """Label, op and its arguments: BERT-Large's shapes in bfloat16; with ``--all`` the other dtypes and shapes too."""
    bf16, f16, f32 = torch.bfloat16, torch.float16, torch.float32
    yield "bf16 1024", keyed_dropout, (bf16, 1024)
    yield "bf16 1024", embedding, (bf16, 1024, 30_528)
    yield "bf16 1024", layer_norm, (bf16, 1024, True)
    yield "bf16 1024 pre-norm", add_layer_norm, (bf16, 1024, False)
    yield "bf16 30528", cross_entropy, (bf16, 30_528)
    yield "f32", lamb, (False,)
    yield "f32 StableAdamW", lamb, (True,)
    yield "bf16 4096 erf", bias_gelu, (bf16, 4096, False)
    yield "bf16 2624 erf", gated_gelu, (bf16, 2624, False)  # ModernBERT-large
    for length in (64, 128, 512):
        yield f"bf16 16x64 {length}", attention, (bf16, length, 16, 64, True)
    yield "bf16 16x64 512 few", attention, (bf16, 512, 16, 64, True, 8)  # too few for one program a sequence and head
    for reach, label in ((64, "window 128"), (None, "global")):  # ModernBERT-base as it trains: without dropout
        yield f"bf16 12x64 {label}", rotary_attention, (bf16, reach, 12, 64, False)
    yield "bf16 12x64", disentangled_attention, (bf16, 12, 64, True)  # DeBERTa-base, the same at every length
    if everything:
        for dtype, name in ((bf16, "bf16"), (f16, "f16"), (f32, "f32")):
            for width in (128, 256, 512, 768, 1024, 2048, 4096):
                for dropout in (False, True):
                    label = f"{name} {width} {'dropout' if dropout else 'plain'}"
                    yield label, layer_norm, (dtype, width, dropout)
                    yield f"{label} pre-norm", add_layer_norm, (dtype, width, dropout)
            for approximate in (False, True):
                for op in (bias_gelu, gated_gelu):
                    yield f"{name} 3072 {'tanh' if approximate else 'erf'}", op, (dtype, 3072, approximate)
            for heads, head_width in ((12, 64), (4, 32), (8, 128), (2, 16)):
                for reach in (64, None):
                    for dropout in (False, True):
                        view = f"{'window 128' if reach else 'global'} {'dropout' if dropout else 'plain'}"
                        arguments = (dtype, reach, heads, head_width, dropout)
                        yield f"{name} {heads}x{head_width} {view}", rotary_attention, arguments
                for dropout, *terms in (
                    (False, "c2p", "p2c"),
                    (True, "c2p", "p2c"),
                    (True, "c2p"),
                    (True, "p2c"),
                    (False,),
                ):
                    label = f"{name} {heads}x{head_width} {'+'.join(terms)} {'dropout' if dropout else 'plain'}"
                    yield label, disentangled_attention, (dtype, heads, head_width, dropout, tuple(terms))
                for length in (32, 64, 128, 256, 512):
                    for dropout in (False, True):
                        label = f"{name} {heads}x{head_width} {length} {'dropout' if dropout else 'plain'}"
                        yield label, attention, (dtype, length, heads, head_width, dropout)


def compile_all(card: int, *, everything: bool, only: str, stages: int | None = None) -> dict[str, dict]:
    """Return what each kernel takes on one card, with other stages than its own if they are given."""
    from megabert.ops.triton_support import tile_sizes as tiles

    compiler = Compiler(card, stages)
    with (
        mock.patch.object(
            JITFunction, "run", lambda function, *args, **options: compiler.run(function, *args, **options)
        ),
        mock.patch.object(tiles, "ASSUMED", divmod(card, 10)),
        mock.patch.object(tiles, "ASSUMED_MULTIPROCESSORS", 108),
    ):
        tiles.capability_of.cache_clear()
        for label, op, arguments in cases(everything):
            if only in op.__name__:
                compiler.label = label
                op(*arguments)
    return compiler.resources


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="every dtype and shape")
    parser.add_argument("--cards", default=",".join(map(str, CARDS)))
    parser.add_argument("--only", default="", help="ops whose name contains this")
    parser.add_argument("--stages", type=int, help="compile with so many in place of each kernel's own")
    parser.add_argument("--markdown", action="store_true")
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
    elif arguments.markdown:
        print_markdown(table)
    else:
        json.dump(table, sys.stdout, indent=1)


def write_budget(table: dict) -> None:
    """Registers are rounded up to 8, which is how a card deals them out. Reasons for waiting are kept."""
    lines = [
        f"  {json.dumps(name)}: "
        + json.dumps(
            {card: [-(-t["registers"] // 8) * 8, t["stack"], t["shared"], t["in_flight"]] for card, t in cards.items()}
        )
        for name, cards in table.items()
    ]
    loops = [f"  {json.dumps(name)}: {json.dumps(list(loop.values()))}" for name, loop in loops_of(table).items()]
    cycles = [f"  {json.dumps(name)}: {json.dumps(cards)}" for name, cards in cycles_of(table).items()]
    head = {"triton": triton.__version__, "columns": ["registers", "stack bytes", "shared bytes", "in flight"]}
    head["cycle columns"] = ["clocks of a pass but for its tiles", "clocks of a tile"]
    head["loop columns"] = ["instructions an element", "those of the ALU pipe", "matrix instructions of the old kind"]
    reasons = json.loads(BUDGET.read_text())["waits with nothing in flight"]
    waits = [f"  {json.dumps(name)}: {json.dumps(reason)}" for name, reason in reasons.items()]
    body = (
        ', "waits with nothing in flight": {\n'
        + ",\n".join(waits)
        + '\n}, "kernels": {\n'
        + ",\n".join(lines)
        + '\n}, "loops": {\n'
        + ",\n".join(loops)
        + '\n}, "cycles": {\n'
        + ",\n".join(cycles)
        + "\n}}\n"
    )
    BUDGET.write_text(json.dumps(head)[:-1] + body)


def print_markdown(table: dict) -> None:
    """Registers a thread / KiB of shared memory a block, stack where there is any; then the counts of inner loops."""
    print("| kernel | warps |" + "".join(f" sm_{card} |" for card in CARDS))
    print("|---|---|" + "---|" * len(CARDS))
    for name, cards in table.items():
        cells = []
        for card in map(str, CARDS):
            taken = cards.get(card)
            stack = f" / {taken['stack']} B" if taken and taken["stack"] else ""
            cells.append(f"{taken['registers']} / {taken['shared'] / 1024:.0f}{stack}" if taken else "-")
        warps = sorted({taken["warps"] for taken in cards.values()})
        print(f"| {name} | {'-'.join(map(str, warps))} | " + " | ".join(cells) + " |")
    print("\n| inner loop, sm_90 | instructions | ALU |\n|---|---|---|")
    for name, loop in loops_of(table).items():
        print(f"| {name} | {loop['issued']:.1f} | {loop['alu']:.1f} |")


if __name__ == "__main__":
    main()
