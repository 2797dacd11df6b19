"""Predict a training step on cards that are not here, from counts of its code as it is now.

    python -m benchmarks.predictions [--tokens 65536] [--micro-steps 8] [--only NAME] [--counts] [--kernels COMMIT]

Nothing runs on a GPU: the trainer's step passes over a device that is not there (tests/fake_cuda), where products,
bytes and tiles of attention's scores are counted. Clocks of a tile are simulated from attention's machine code: they
stand in tests/unit/ops/kernel_budget.json, or are made here from the kernels of another commit. Rates of the cards are
assumed (cards.py). Needs g++, Triton and torch's build for CPUs.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
UNIT = 32_768
"""Tokens that the report's numbers are of."""
BUDGET = TESTS / "unit" / "ops" / "kernel_budget.json"
BERT = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
MODERN = {"family": "modernbert", "vocab_size": 50_368, "max_position_embeddings": 8192}
MODELS: dict[str, tuple[dict[str, Any], tuple[int, ...], float]] = {
    "BERT-Large": (BERT | {"vocab_size": 30_522}, (128, 512), 1.0),
    "ModernBERT-base": (MODERN | {"preset": "base"}, (1024, 8192), 0.93),
    "ModernBERT-large": (MODERN | {"preset": "large"}, (1024, 8192), 0.985),
}
"""Fields, lengths, and the rate of products over BERT-Large's: 768 columns are few, 5,248 no multiple of a tile."""


def cycles_of(commit: str) -> dict[str, dict[str, tuple[int, int]]]:
    """Return the clocks of attention's kernels, by kernel and card; of the budget's if no commit is named."""
    if not commit:
        return json.loads(BUDGET.read_text())["cycles"]
    environment = {key: value for key, value in os.environ.items() if key not in ("LD_PRELOAD", "TRITON_INTERPRET")}
    with tempfile.TemporaryDirectory() as folder:
        command = ["git", "archive", commit, "megabert"]
        archive = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=True).stdout
        subprocess.run(["tar", "x", "-C", folder], input=archive, env=environment, check=True)
        command = [sys.executable, str(BUDGET.with_name("compiled_resources.py")), "--cards", "80,90"]
        environment["PYTHONPATH"] = folder
        done = subprocess.run([*command, "--only", "attention"], env=environment, capture_output=True, check=True)
    kernels = json.loads(done.stdout).items()
    return {name: {card: taken.get("cycles") for card, taken in cards.items()} for name, cards in kernels}


def lines_of(options: argparse.Namespace) -> Iterator[str]:
    """Return the report, a table for each model and length."""
    from benchmarks.predictions.cards import CARDS
    from benchmarks.predictions.counts import step_work

    chosen = [
        (name, length)
        for name, (_, lengths, _) in MODELS.items()
        for length in lengths
        if options.only in f"{name} at {length}"
    ]
    cycles = cycles_of(options.kernels)
    for name, length in chosen:
        work = {
            capability: step_work(
                MODELS[name][0],
                tokens=options.tokens,
                length=length,
                micro_steps=options.micro_steps,
                capability=capability,
                multiprocessors=multiprocessors,
            )
            for capability, multiprocessors in {
                card.capability: card.multiprocessors for card in CARDS.values()
            }.items()
        }
        size = f"{options.micro_steps} micro-steps of {options.tokens:,} tokens"
        yield f"\n{name} at {length}, {size}; every number is of 32,768 tokens\n"
        units = options.tokens * options.micro_steps / UNIT
        yield from table(work, cycles, units=units, share=MODELS[name][2])
        if options.counts:
            yield ""
            yield from listing(work[CARDS["H200"].capability], units)


def table(
    work: dict[tuple[int, int], Any], cycles: dict[str, dict[str, tuple[int, int]]], *, units: float, share: float
) -> Iterator[str]:
    """Return a table of parts and cards; work by compute capability, clocks as in ``cycles_of``, share as in MODELS."""
    from benchmarks.predictions.cards import CARDS, milliseconds_by_part
    from benchmarks.predictions.counts import by_part

    sums = {field: by_part(work[CARDS["H200"].capability], field) for field in ("flops", "bytes", "launches")}
    results = {}
    for name, card in CARDS.items():
        key = "".join(map(str, card.capability))
        on_card = {kernel: clocks[key] for kernel, clocks in cycles.items() if key in clocks}
        results[name] = [
            milliseconds_by_part(work[card.capability], card, cycles=on_card, rate=share * rate)
            for rate in card.product_tflops
        ]
    yield "| part | TFLOP | GB | launches | " + " | ".join(f"{card}, ms" for card in CARDS) + " |"
    yield "|---" * (4 + len(CARDS)) + "|"
    for part in sorted(sums["launches"], key=lambda part: -results["H200"][0][part]):
        flops, moved, launches = (sums[field][part] / units for field in ("flops", "bytes", "launches"))
        cells = [f"{flops / 1e12:.2f}", f"{moved / 1e9:.2f}", f"{launches:.0f}"]
        yield row(part, [*cells, *(f"{parts[0][part] / units:.1f}" for parts in results.values())])
    totals = [[sum(parts.values()) / units for parts in of_rates] for of_rates in results.values()]
    shown = [f"{expected:.1f} ({least:.1f} to {most:.1f})" for expected, most, least in totals]
    yield row("together", ["", "", "", *shown])
    rates = [[1e3 * UNIT / total for total in of_rates] for of_rates in totals]
    shown = [f"**{expected:,.0f}** ({least:,.0f} to {most:,.0f})" for expected, least, most in rates]
    yield row("tokens/s", ["", "", "", *shown])


def row(name: str, cells: list[str]) -> str:
    """Return a line of a table."""
    return f"| {name} | {' | '.join(cells)} |"


def listing(work: dict[Any, Any], units: float) -> Iterator[str]:
    """Return a line for each kernel and operation that moves a megabyte or more."""
    for label, each in sorted(work.items()):
        if each.bytes / units >= 1e6:
            name = " ".join(filter(None, (label.name, label.loop)))
            yield (
                f"    {label.part}: {name}: {each.launches / units:.1f} launches, {each.bytes / units / 1e9:.3f} GB, "
                f"{each.flops / units / 1e12:.3f} TFLOP, {each.tiles / units:,.0f} tiles of scores"
            )


def main() -> None:
    """Build the guard, start again with it, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=65_536, help="tokens of a micro-step")
    parser.add_argument("--micro-steps", type=int, default=8)
    parser.add_argument(
        "--only", default="", help="models and lengths whose name contains this, such as 'base at 1024'"
    )
    parser.add_argument("--kernels", default="", metavar="COMMIT", help="kernels of this commit, compiled here")
    parser.add_argument("--counts", action="store_true", help="every kernel and operation too")
    options = parser.parse_args()
    if "guard.so" in os.environ.get("LD_PRELOAD", ""):
        for line in lines_of(options):
            print(line, flush=True)
        return
    sys.path.insert(0, str(TESTS))
    from fake_cuda.guard import build_guard, why_not_here

    reason = why_not_here()
    if reason:
        sys.exit(reason)
    with tempfile.TemporaryDirectory() as folder:
        paths = os.pathsep.join([str(ROOT), str(TESTS), os.environ.get("PYTHONPATH", "")])
        environment = os.environ | {"LD_PRELOAD": str(build_guard(Path(folder))), "PYTHONPATH": paths}
        environment["TRITON_CACHE_DIR"] = folder
        command = [sys.executable, "-m", "benchmarks.predictions", *sys.argv[1:]]
        sys.exit(subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode)


if __name__ == "__main__":
    main()
