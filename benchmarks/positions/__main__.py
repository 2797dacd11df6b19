"""New positions at the border of a longer phase: untrained, tiled, or trained before by a random offset.

    python -m benchmarks.positions [--schedule debug] [--seeds 1 2 3] [--chains ...] [--plot FILE] [--report]

A BERT of two layers, 128 wide, is trained on the bundled English corpus by LAMB, 4,096 tokens per step: 600 steps of
length 32, 300 of 128, 150 of 512; or, with ``--schedule debug``, 1,300 of 128 and 150 of 512. At each border the chains
are forks of one checkpoint, so that they differ in the new rows of the position table alone. ``offset`` has a chain of
its own, which spreads short instances over all 512 positions from the first step on. Finished cells are lines of
--results: the same command continues, also inside a cell that was killed. --report runs nothing.
"""

import statistics
from itertools import pairwise
from pathlib import Path

import numpy as np

from benchmarks.cells import Curve, Result, draw_panels, parser_of, read_results, run_missing
from benchmarks.positions.cells import SCHEDULES, Cell, Schedule, run_cell
from megabert.foundation.text_tables import render_table

SHOWN_AT = (0.1, 0.2, 0.3, 0.5, 1.0)
"""Shares of a phase's steps that the table has a column for."""
ROWS = ("keep", "tile", "tile, zero moments", "offset")


def chosen(results: list[Result], length: int, chain: str) -> list[Result]:
    """Return the cells of a chain in the phase of a length, one for each seed."""
    return [result for result in results if (result["length"], result["chain"]) == (length, chain)]


def chains_of(results: list[Result], length: int) -> list[str]:
    """Return the chains that have entered the phase of a length, in the order in which they are shown."""
    return [name for name in ROWS if chosen(results, length, name)]


def steps_saved(result: Result, kept: list[Result]) -> float | None:
    """Return how many steps before the end of the phase a chain had the loss at which ``keep`` ended; None if never.

    Args:
        result: The chain's cell.
        kept: The cells of ``keep``, one of them from the same seed.
    """
    target = next(other["mlm_loss"][-1] for other in kept if other["seed"] == result["seed"])
    steps, losses = result["steps"], result["mlm_loss"]
    for i, (step, loss) in enumerate(zip(steps, losses, strict=True)):
        if loss <= target:  # between two scores the loss falls in a line
            reached = step if i == 0 else np.interp(-target, [-losses[i - 1], -loss], [steps[i - 1], step])
            return float(steps[-1] - reached)
    return None


def table(results: list[Result], length: int) -> str:
    """Return the table of a phase: mean of the seeds, and at the end the range."""
    rows, kept = [], chosen(results, length, "keep")
    for chain in chains_of(results, length):
        own = chosen(results, length, chain)
        steps = own[0]["steps"]
        columns = [min(range(len(steps)), key=lambda i: abs(steps[i] - share * steps[-1])) for share in SHOWN_AT]
        losses = [[result["mlm_loss"][i] for result in own] for i in columns]
        accuracy = [[result["nsp_accuracy"][i] for result in own] for i in columns[-2:]]
        saved = [steps_saved(result, kept) for result in own]
        rows.append(
            (
                chain,
                *(f"{statistics.fmean(values):.3f}" for values in losses[:-1]),
                f"{statistics.fmean(losses[-1]):.3f} ({min(losses[-1]):.3f} to {max(losses[-1]):.3f})",
                ", ".join(f"{100 * statistics.fmean(values):.0f}%" for values in accuracy),
                ", ".join("none" if value is None else f"{value:.0f}" for value in saved),
            )
        )
    if not rows:
        return "nothing was run yet"
    headers = ["new rows", *(f"step {steps[i]}" for i in columns), "next sentences", "steps saved"]
    return render_table(rows, headers=headers, align="l" + "r" * 7)


def draw(results: list[Result], schedule: Schedule, path: Path) -> None:
    """Draw held-out loss over the steps of each longer phase: means of the seeds, bands from least to greatest."""
    panels = {}
    for before, stretch in pairwise(schedule.stretches):
        runs = {chain: chosen(results, stretch.length, chain) for chain in chains_of(results, stretch.length)}
        panels[f"length {before.length}, then {stretch.length}", f"step of the phase of length {stretch.length}"] = [
            Curve(chain, own[0]["steps"], [result["mlm_loss"] for result in own]) for chain, own in runs.items()
        ]
    draw_panels(panels, path, y_label="held-out masked-LM loss (nats)", name="positions")


def main() -> None:
    """Run the cells that the results lack, then print the tables and draw the picture."""
    parser = parser_of(__doc__, __file__, name="positions")
    parser.add_argument("--schedule", choices=SCHEDULES, default="short first", help="default: short first")
    parser.add_argument("--chains", nargs="+", help="default: all")
    options = parser.parse_args()
    schedule = SCHEDULES[options.schedule]
    results = read_results(options.results)
    own = [result for result in results if result["schedule"] == options.schedule]
    cells = [
        Cell(options.schedule, *link, seed)
        for seed in options.seeds
        for link in schedule.parents
        if link[1] in (options.chains or [link[1]])
    ]
    run_missing(
        [] if options.report else cells,
        own,
        options.results,
        key=lambda cell: (cell.length, cell.chain, cell.seed),
        run=lambda cell: run_cell(cell, options.work.resolve() / options.schedule.replace(" ", "_")),
    )
    for stretch in schedule.stretches[1:]:
        print(f"\nphase of length {stretch.length}, {stretch.steps} steps\n{table(own, stretch.length)}")
    if options.plot:
        draw(own, schedule, options.plot)


if __name__ == "__main__":
    main()
