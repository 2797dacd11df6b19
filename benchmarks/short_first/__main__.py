"""A short first phase against none: held-out scores at length 128, at equal tokens and at equal CPU time.

    python -m benchmarks.short_first [--families bert roberta electra] [--corpora english korean] [--seeds 1 2 3]

Two layers, 128 wide, AdamW, on the bundled corpora with the demo's vocabularies. ``short first`` trains 600 steps of 32
instances of length 16, then 250 of 8 of length 128; ``128 alone`` trains 700 steps of 8 of length 128, which are more
tokens and more CPU time than both phases. Rates are constant after their warm-up, so that each point of its curve is a
run that ends there: one run gives both comparisons. CPU seconds are those of training, without start and validations.
"""

import statistics
from pathlib import Path

import numpy as np

from benchmarks.cells import CORPORA, Curve, Result, draw_panels, parser_of, read_results, run_missing, spread
from benchmarks.short_first.cells import CANDIDATES, SCHEDULES, Cell, run_cell
from megabert.foundation.text_tables import render_table

SHORT, ALONE = SCHEDULES
SCORES = {"nsp_accuracy": "next sentences", "rtd_auc": "discriminator AUC"}


def below(result: Result) -> list[float]:
    """Return how far each loss at [MASK] is below the unigram's."""
    return [result["unigram"] - loss for loss in result["loss"]]


def values_of(result: Result, score: str) -> list[float]:
    """Return the curve of a score; ``below`` is the margin at [MASK]."""
    return below(result) if score == "below" else list(result[score])


def at_equal(short: Result, alone: Result, measure: str, score: str) -> float:
    """Return the score of the run without a short phase when it had used as much as the other one had at its end.

    Args:
        short: The run with a short phase.
        alone: The run without one, of the same seed.
        measure: ``tokens`` or ``cpu_s``.
        score: ``below``, or a key of the results.

    Raises:
        ValueError: It never used as much.
    """
    if alone[measure][-1] < short[measure][-1]:
        raise ValueError(f"{alone['family']}, seed {alone['seed']}: {measure} end at {alone[measure][-1]}. Add steps.")
    return float(np.interp(short[measure][-1], alone[measure], values_of(alone, score)))


def pairs_of(results: list[Result], corpus: str, family: str) -> list[tuple[Result, Result]]:
    """Return the runs with and without a short phase of each seed that has both."""
    own = [r for r in results if (r["corpus"], r["family"]) == (corpus, family)]
    alone = {r["seed"]: r for r in own if r["schedule"] == ALONE}
    return [(r, alone[r["seed"]]) for r in own if r["schedule"] == SHORT and r["seed"] in alone]


def table(results: list[Result], corpus: str) -> str:
    """Return the table of a corpus: mean and range of the seeds, and the gain of each."""
    rows = []
    for family in CANDIDATES:
        pairs = pairs_of(results, corpus, family)
        for score in ("below", *SCORES) if pairs else ():
            if score != "below" and score not in pairs[0][0]:
                continue
            ends = [values_of(short, score)[-1] for short, _ in pairs]
            tokens, seconds = ([at_equal(*pair, measure, score) for pair in pairs] for measure in ("tokens", "cpu_s"))
            gains = [end - other for end, other in zip(ends, seconds, strict=True)]
            cpu_s = statistics.fmean(short["cpu_s"][-1] for short, _ in pairs)
            shown = f"{family}: {SCORES.get(score, 'nats below the unigram')}"
            row = (spread(ends), spread(tokens), spread(seconds), ", ".join(f"{gain:+.3f}" for gain in gains))
            rows.append((shown, *row, f"{cpu_s:.0f}"))
    headers = ("", "short first", "128 alone, equal tokens", "128 alone, equal CPU time", "gain by seed", "CPU s")
    return render_table(rows, headers=headers, align="lrrrrr") if rows else "nothing was run yet"


def draw(results: list[Result], path: Path) -> None:
    """Draw nats below the unigram at [MASK] over CPU seconds, a panel for each family."""
    panels = {}
    for family in CANDIDATES:
        curves = []
        for corpus in CORPORA:
            pairs = pairs_of(results, corpus, family)
            for schedule, runs in zip(SCHEDULES, zip(*pairs, strict=True), strict=False):  # no pair, no curve
                seconds = [statistics.fmean(column) for column in zip(*(r["cpu_s"] for r in runs), strict=True)]
                curves.append(Curve(f"{corpus}, {schedule}", seconds, list(map(below, runs))))
        if curves:
            panels[family, "CPU seconds of training"] = curves
    y_label = "nats below the unigram at [MASK], length 128"
    draw_panels(panels, path, y_label=y_label, name="short_first", sharey=True, zero_line=True, bottom=-0.2)


def main() -> None:
    """Run the cells that the results lack, then print the tables and draw the picture."""
    parser = parser_of(__doc__, __file__, name="short_first")
    parser.add_argument("--families", nargs="+", choices=CANDIDATES, default=list(CANDIDATES))
    parser.add_argument("--corpora", nargs="+", choices=CORPORA, default=list(CORPORA))
    options = parser.parse_args()
    results = read_results(options.results)
    cells = [
        Cell(corpus, family, schedule, seed)
        for seed in options.seeds
        for corpus in options.corpora
        for family in options.families
        for schedule in SCHEDULES
    ]
    run_missing(
        [] if options.report else cells,
        results,
        options.results,
        key=lambda cell: (cell.corpus, cell.family, cell.schedule, cell.seed),
        run=lambda cell: run_cell(cell, options.work.resolve()),
    )
    for corpus in options.corpora:
        print(f"\n{corpus}: at the end of short first, mean (least to greatest) of the seeds\n{table(results, corpus)}")
    if options.plot:
        draw(results, options.plot)


if __name__ == "__main__":
    main()
