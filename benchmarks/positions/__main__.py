"""New positions at the border of a longer phase: untrained, tiled, or trained before by a random offset.

    python -m benchmarks.positions [--seeds 1 2 3] [--chains ...] [--work DIR] [--results FILE] [--svg FILE] [--report]

A BERT of two layers, 128 wide, is trained on the bundled English corpus by LAMB, 4,096 tokens per step: 600 steps of
length 32, 300 of 128, 150 of 512. At each border the chains are forks of one checkpoint, so that they differ in the new
rows of the position table alone. ``offset`` has a chain of its own, which spreads short instances over all 512
positions from the first step on. Finished cells are lines of --results: the same command continues, also inside a cell
that was killed. --report runs nothing.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.positions.cells import PARENTS, STRETCHES, Cell, run_cell
from megabert.text_tables import render_table

HERE = Path(__file__).parent
SHOWN_AT = (0.1, 0.2, 0.3, 0.5, 1.0)
"""Shares of a phase's steps that the table has a column for."""
ROWS = ("keep", "tile", "tile, zero moments", "offset")
Result = dict[str, Any]


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


def draw(results: list[Result], path: Path) -> None:
    """Draw held-out loss over the steps of each longer phase: means of the seeds, bands from least to greatest."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "positions"})  # the same bytes each time
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(STRETCHES) - 1, figsize=(10, 4), dpi=120)
    for panel, before, stretch in zip(panels, STRETCHES, STRETCHES[1:], strict=False):
        for chain in chains_of(results, stretch.length):
            own = chosen(results, stretch.length, chain)
            columns = list(zip(*(result["mlm_loss"] for result in own), strict=True))
            steps = own[0]["steps"]
            (line,) = panel.plot(steps, [statistics.fmean(column) for column in columns], label=chain)
            panel.fill_between(
                steps, list(map(min, columns)), list(map(max, columns)), color=line.get_color(), alpha=0.2
            )
        panel.set_title(f"length {before.length}, then {stretch.length}")
        panel.set_xlabel(f"step of the phase of length {stretch.length}")
    panels[0].set_ylabel("held-out masked-LM loss (nats)")
    panels[0].legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)


def main() -> None:
    """Run the cells that the results lack, then print the tables and draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = list(dict.fromkeys(chain for _, chain in PARENTS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--chains", nargs="+", choices=names, default=names, help="default: all")
    parser.add_argument("--work", type=Path, default=Path("build/positions"), help="shards and runs")
    parser.add_argument("--results", type=Path, default=HERE / "results.jsonl")
    parser.add_argument("--svg", type=Path, help="draw the curves into this file")
    parser.add_argument("--report", action="store_true", help="print the tables of finished cells")
    options = parser.parse_args()
    lines = options.results.read_text().splitlines() if options.results.exists() else []
    results = [json.loads(line) for line in lines]
    done = {(result["length"], result["chain"], result["seed"]) for result in results}
    for seed in [] if options.report else options.seeds:
        for phase, chain in PARENTS:
            if chain in options.chains and (STRETCHES[phase].length, chain, seed) not in done:
                results.append(run_cell(Cell(phase, chain, seed), options.work.absolute()))
                with options.results.open("a") as file:
                    file.write(json.dumps(results[-1]) + "\n")
    for stretch in STRETCHES[1:]:
        print(f"\nphase of length {stretch.length}, {stretch.steps} steps\n{table(results, stretch.length)}")
    if options.svg:
        draw(results, options.svg)


if __name__ == "__main__":
    main()
