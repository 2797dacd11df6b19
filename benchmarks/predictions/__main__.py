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
    """Return the report: a table for each model, length and precision, and one of all steps."""
    from benchmarks.predictions.cards import CARDS
    from benchmarks.predictions.counts import step_work

    chosen = [
        (name, length, in_fp8)
        for name, (_, lengths, _) in MODELS.items()
        for length in lengths
        for in_fp8 in (False, True)
        if options.only in f"{name} at {length}"
    ]
    cycles, steps = cycles_of(options.kernels), []
    for name, length, in_fp8 in chosen:
        cards = {card: rates for card, rates in CARDS.items() if rates.fp8_tflops or not in_fp8}
        peak, work = 0, {}
        for capability, multiprocessors in {one.capability: one.multiprocessors for one in cards.values()}.items():
            sizes = {"tokens": options.tokens, "length": length, "micro_steps": options.micro_steps}
            processor = {"capability": capability, "multiprocessors": multiprocessors}
            work[capability], held = step_work(MODELS[name][0], in_fp8=in_fp8, **sizes, **processor)
            peak = max(peak, held)
        title = f"{name} at {length}, {'fp8' if in_fp8 else 'bf16'}"
        size = f"{options.micro_steps} micro-steps of {options.tokens:,} tokens"
        yield f"\n{title}, {size}; every number is of 32,768 tokens\n"
        units = options.tokens * options.micro_steps / UNIT
        results = {card: milliseconds(work, card, cycles, share=MODELS[name][2], units=units) for card in cards}
        yield from table(work[CARDS["H200"].capability], results, units=units)
        steps.append(row(title, [f"{peak / 2**30:.1f}", *(tokens_per_s(results[card]) for card in cards)]))
        if options.counts:
            yield ""
            yield from listing(work[CARDS["H200"].capability], units)
    yield "\n" + row(f"{options.tokens:,} tokens, one rank", ["GiB", *(f"{card}, tokens/s" for card in CARDS)])
    yield "|---" * (2 + len(CARDS)) + "|"
    yield from steps


Results = dict[str, list[dict[str, float]]]
"""For each card the milliseconds of each part at the expected, the lowest and the highest rate of products."""


def milliseconds(
    work: dict[tuple[int, int], Any], card: str, cycles: dict[str, Any], *, share: float, units: float
) -> list[dict[str, float]]:
    """Return the milliseconds of a card's parts; work by compute capability, clocks as in ``cycles_of``."""
    from benchmarks.predictions.cards import CARDS, milliseconds_by_part

    rates, key = CARDS[card], "".join(map(str, CARDS[card].capability))
    clocks = {kernel: of_cards[key] for kernel, of_cards in cycles.items() if key in of_cards}
    parts = [
        milliseconds_by_part(work[rates.capability], rates, cycles=clocks, rate=share * rate, fp8_rate=share * fp8_rate)
        for rate, fp8_rate in zip(rates.product_tflops, rates.fp8_tflops or rates.product_tflops, strict=True)
    ]
    return [{part: ms / units for part, ms in one.items()} for one in parts]


def tokens_per_s(of_rates: list[dict[str, float]]) -> str:
    """Return the tokens per second at each rate."""
    expected, least, most = (1e3 * UNIT / sum(parts.values()) for parts in of_rates)
    return f"**{expected:,.0f}** ({least:,.0f} to {most:,.0f})"


def table(work: Any, results: Results, *, units: float) -> Iterator[str]:
    """Return a table of parts and cards; ``work`` is an H200's."""
    from benchmarks.predictions.counts import by_part

    sums = {field: by_part(work, field) for field in ("flops", "bytes", "launches")}
    yield "| part | TFLOP | GB | launches | " + " | ".join(f"{card}, ms" for card in results) + " |"
    yield "|---" * (4 + len(results)) + "|"
    for part in sorted(sums["launches"], key=lambda part: -results["H200"][0][part]):
        flops, moved, launches = (sums[field][part] / units for field in ("flops", "bytes", "launches"))
        cells = [f"{flops / 1e12:.2f}", f"{moved / 1e9:.2f}", f"{launches:.0f}"]
        yield row(part, [*cells, *(f"{of_rates[0][part]:.1f}" for of_rates in results.values())])
    totals = [[sum(parts.values()) for parts in of_rates] for of_rates in results.values()]
    shown = [f"{expected:.1f} ({least:.1f} to {most:.1f})" for expected, most, least in totals]
    yield row("together", ["", "", "", *shown])
    yield row("tokens/s", ["", "", "", *map(tokens_per_s, results.values())])


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
