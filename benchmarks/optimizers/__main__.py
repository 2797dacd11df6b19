"""LAMB, AdamW, StableAdamW and Muon for masked language models, at equal tokens and at equal CPU time.

    python -m examples.models english --work WORK --steps texts build
    python -m benchmarks.optimizers --data WORK/english/data [--widths 128 256] [--seeds 1 2 3] [--optimizers muon]

ModernBERTs of four layers on the English texts of examples/models (34 million tokens, 8,192 pieces), batches of 16
instances of 128 tokens, one thread. Each optimizer has its own rule of clipping: the global norm at 1 (LAMB,
AdamW), none (StableAdamW, Muon). Rates are searched alike: a first one (the narrower model's best), then half and twice
the best one of seed 1 until both are worse. All seeds run at the best rate, for 1,000 steps, and an optimizer whose
steps take longer also for as many as fit in the time of the fastest one's, with a schedule of that length. Held out is
the masked-LM loss. Calls with different ``--optimizers`` may run side by side; a last one without it runs what needs
the results of all.
"""

import statistics
from pathlib import Path

from benchmarks.cells import Curve, Result, draw_panels, parser_of, read_results, run_missing, spread
from benchmarks.optimizers.cells import (
    OPTIMIZERS,
    STEPS,
    WIDTHS,
    best_rate,
    cells_of,
    of,
    run_cell,
    seconds_a_step,
    steps_in_equal_time,
)
from megabert.foundation.text_tables import render_table


def rates_table(results: list[Result], width: int) -> str:
    """Return the held-out loss of seed 1 by optimizer and rate, the best ones marked."""
    rows = []
    for optimizer in OPTIMIZERS:
        own = sorted(of(results, width=width, optimizer=optimizer, steps=STEPS, seed=1), key=lambda r: r["rate"])
        best = min((r["loss"][-1] for r in own), default=None)
        shown = (f"{r['rate']:g}: {r['loss'][-1]:.3f}{'*' * (r['loss'][-1] == best)}" for r in own)
        rows.append((optimizer, ", ".join(shown)))
    return render_table(rows, headers=("optimizer", "held-out loss by rate, seed 1"), align="ll")


def seeds_table(results: list[Result], width: int) -> str:
    """Return mean and range of the seeds at the best rates: at equal tokens and at equal CPU time."""
    rows = []
    for optimizer in OPTIMIZERS:
        rate, fitting = best_rate(results, width, optimizer), steps_in_equal_time(results, width, optimizer)
        ends = {
            steps: [r["loss"][-1] for r in of(results, width=width, optimizer=optimizer, rate=rate, steps=steps)]
            for steps in (STEPS, fitting)
        }
        a_step = f"{seconds_a_step(results, width, optimizer):.3f}"
        in_time = f"{spread(ends[fitting])}, {fitting:,} steps" if ends[fitting] else "-"
        rows.append((optimizer, f"{rate:g}", str(len(ends[STEPS])), spread(ends[STEPS]), in_time, a_step))
    headers = ("optimizer", "rate", "seeds", f"{STEPS:,} steps", "in the time of the fastest", "CPU s per step")
    return render_table(rows, headers=headers, align="lrrrrr")


def tables(results: list[Result], width: int) -> str:
    """Return the tables of a width; the second one when every optimizer has run."""
    own = of(results, width=width)
    if not own:
        return "nothing was run yet"
    complete = {result["optimizer"] for result in own if result["steps"] == STEPS} == set(OPTIMIZERS)
    return "\n\n".join([rates_table(results, width), *([seeds_table(results, width)] if complete else [])])


def draw(results: list[Result], path: Path) -> None:
    """Draw held-out loss over the steps and over CPU seconds at the best rates, for each width."""
    panels = {}
    for width in WIDTHS:
        by_steps, by_time = [], []
        for optimizer in OPTIMIZERS:
            runs = of(results, width=width, optimizer=optimizer, steps=STEPS)
            if runs:
                runs = of(runs, rate=best_rate(results, width, optimizer))
                losses = [run["loss"] for run in runs]
                seconds = [statistics.fmean(column) for column in zip(*(run["cpu_s"] for run in runs), strict=True)]
                by_steps.append(Curve(optimizer, runs[0]["scored"], losses))
                by_time.append(Curve(optimizer, seconds, losses))
        if by_steps:
            panels[f"{width} wide", "steps"] = by_steps
            panels[f"{width} wide, same runs", "CPU seconds"] = by_time
    draw_panels(panels, path, y_label="held-out masked-LM loss, nats", name="optimizers", sharey=True)


def main() -> None:
    """Run the cells that the results lack, then print the tables and draw the picture."""
    parser = parser_of(__doc__, __file__, name="optimizers")
    parser.add_argument("--data", type=Path, help="shards of length 128, by examples.models; --report needs none")
    parser.add_argument("--widths", nargs="+", type=int, choices=WIDTHS, default=list(WIDTHS))
    parser.add_argument("--optimizers", nargs="+", choices=OPTIMIZERS, default=list(OPTIMIZERS))
    options = parser.parse_args()
    if not options.report and options.data is None:
        parser.error("--data is needed: the folder that examples.models has built")
    results = read_results(options.results)
    for width in [] if options.report else options.widths:
        run_missing(
            cells_of(results, width, options.seeds, options.optimizers),
            results,
            options.results,
            key=lambda cell: (cell.width, cell.optimizer, cell.rate, cell.steps, cell.seed),
            run=lambda cell: run_cell(cell, options.data.resolve(), options.work.resolve()),
        )
    for width in options.widths:
        print(f"\n{width} wide\n{tables(results, width)}")
    if options.plot:
        draw(results, options.plot)


if __name__ == "__main__":
    main()
