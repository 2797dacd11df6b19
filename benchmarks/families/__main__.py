"""Which family learns to read its context first: held-out loss at [MASK] at equal tokens and parameters.

    python -m benchmarks.families [--corpora english korean] [--seeds 1 2 3] [--candidates bert ...] [--report]

Two layers, 128 wide, on the bundled corpora with the demo's vocabularies: 500,000 tokens in batches of 32 instances of
up to 64, AdamW, 40% of the tokens masked by the loader, weights from a standard deviation of 0.05. The first seed tries
the peak rates of --rates on the first corpus; the best one is that of all seeds and corpora. BERT reads pairs and
predicts the next sentence as well; the others read single segments. Each cell is a run of `megabert pretrain`, scored
at its checkpoints by the code of `megabert report`. Finished cells are lines of --results: the same command continues,
also inside a cell that was killed. --report runs nothing.
"""

import argparse
import statistics
from collections.abc import Iterator
from pathlib import Path

from benchmarks.cells import CORPORA, Curve, Result, draw_panels, parser_of, read_results, run_missing, spread
from benchmarks.families.cells import CANDIDATES, Cell, run_cell
from megabert.foundation.text_tables import render_table

CLEARLY = 0.1
"""Nats below the unigram from which on a model is said to read its context."""


def cells_of(options: argparse.Namespace, results: list[Result]) -> Iterator[Cell]:
    """Yield all cells in the order in which they are run; rates are chosen from the results when it is their turn."""
    for corpus in options.corpora:
        for seed in options.seeds:
            for candidate in options.candidates:
                is_trial = (corpus, seed) == (options.corpora[0], options.seeds[0])
                for rate in options.rates if is_trial else (best_rate(candidate, results),):
                    yield Cell(corpus, candidate, rate, seed)


def best_rate(candidate: str, results: list[Result]) -> float:
    """Return the rate of the lowest last loss on the first corpus and seed of the results."""
    trials = [result for result in results if result["candidate"] == candidate]
    trials = [t for t in trials if (t["corpus"], t["seed"]) == (trials[0]["corpus"], trials[0]["seed"])]
    return float(min(trials, key=lambda trial: trial["loss"][-1])["rate"])


def below(result: Result) -> list[float]:
    """Return how far each loss is below the unigram's."""
    return [result["unigram"] - loss for loss in result["loss"]]


def chosen(results: list[Result], corpus: str, candidate: str) -> list[Result]:
    """Return a candidate's results at its best rate, a seed each."""
    own = [result for result in results if (result["corpus"], result["candidate"]) == (corpus, candidate)]
    return [result for result in own if result["rate"] == best_rate(candidate, results)]


def below_half_way(result: Result) -> float:
    """Return the margin where about half of the tokens have been read."""
    half = result["steps"][-1] / 2
    return min(zip(result["steps"], below(result), strict=True), key=lambda scored: abs(scored[0] - half))[1]


def first_read(result: Result) -> float | None:
    """Return after how many thousand tokens a run was clearly below the unigram; None if it never was."""
    for step, margin in zip(result["steps"], below(result), strict=True):
        if margin >= CLEARLY:
            return float(step * result["tokens_a_step"] / 1000)
    return None


def table(results: list[Result], corpus: str) -> str:
    """Return a corpus' table, best family first."""
    rows = []
    for candidate in dict.fromkeys(result["candidate"] for result in results):
        own = chosen(results, corpus, candidate)
        if not own:
            continue
        last = [below(result)[-1] for result in own]
        half = [below_half_way(result) for result in own]
        reads = [first_read(result) for result in own]
        seconds = [result["cpu_s"] for result in own if result["cpu_s"]]
        row = (
            candidate,
            f"{own[0]['parameters']:,}",
            f"{own[0]['rate']:g}",
            spread(half),
            spread(last),
            ", ".join("never" if tokens is None else f"{tokens:.0f}" for tokens in reads),
            f"{statistics.median(seconds):.0f}" if seconds else "-",
        )
        rows.append((statistics.fmean(last), row))
    headers = ("family", "parameters", "rate", "below at half", "below at the end", "reads after", "CPU s")
    ordered = [row for _, row in sorted(rows, reverse=True)]
    return render_table(ordered, headers=headers, align="lrrrrrr") if ordered else "nothing was run yet"


def draw(results: list[Result], corpora: list[str], path: Path) -> None:
    """Draw nats below the unigram over tokens, a panel a corpus: means of the seeds, bands from least to greatest."""
    panels = {}
    for corpus in corpora:
        own = {name: chosen(results, corpus, name) for name in dict.fromkeys(r["candidate"] for r in results)}
        panels[corpus, "million tokens"] = [
            Curve(name, [step * runs[0]["tokens_a_step"] / 1e6 for step in runs[0]["steps"]], list(map(below, runs)))
            for name, runs in own.items()
            if runs
        ]
    draw_panels(panels, path, y_label="nats below the unigram at [MASK]", name="families", zero_line=True, bottom=-0.3)


def main() -> None:
    """Run the cells that the results lack, then print the tables and draw the plot."""
    parser = parser_of(__doc__, __file__, name="families")
    names = [candidate.name for candidate in CANDIDATES]
    parser.add_argument("--corpora", nargs="+", choices=CORPORA, default=list(CORPORA))
    parser.add_argument("--rates", nargs="+", type=float, default=[2e-3, 4e-3], help="peaks that the first seed tries")
    parser.add_argument("--candidates", nargs="+", choices=names, default=names)
    options = parser.parse_args()
    results = read_results(options.results)
    run_missing(
        () if options.report else cells_of(options, results),
        results,
        options.results,
        key=lambda cell: (cell.corpus, cell.candidate, cell.rate, cell.seed),
        run=lambda cell: run_cell(cell, options.work.resolve()),
    )
    for corpus in options.corpora:
        print(
            f"\n{corpus}: nats below the unigram at held-out [MASK], mean (least to greatest) of the seeds; thousands"
        )
        print(f"of tokens until it is {CLEARLY:g}; CPU seconds of a run\n{table(results, corpus)}")
    if options.plot:
        draw(results, options.corpora, options.plot)


if __name__ == "__main__":
    main()
