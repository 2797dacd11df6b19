"""``megabert report``: what a run has learned."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from megabert.errors import DataError


def run(arguments: Sequence[str]) -> int:
    """Print the table and the fill-mask examples, write the loss curve."""
    parser = argparse.ArgumentParser(
        prog="megabert report",
        description="Print one table of what a run has learned, phase by phase, beside the unigram baseline; write "
        "the loss curve as RUN/loss.png; with --text, show guesses for [MASK] of the unigram, the untrained and the "
        "trained model side by side.",
        epilog='example: megabert report runs/demo --text "He went to [MASK] sea."',
    )
    parser.add_argument("run_dir", type=Path, metavar="RUN", help="run folder")
    parser.add_argument("--text", action="append", default=[], help="a text with one [MASK] or more; repeatable")
    parser.add_argument("--checkpoint", default="last", help="last, best or a step (default: last)")
    parser.add_argument(
        "--min-margin",
        type=float,
        metavar="NATS",
        help="fail (exit 3) if the last held-out loss is not this far below the unigram baseline",
    )
    options = parser.parse_args(arguments)

    from megabert.inspection.positions import losses_by_position, render_positions
    from megabert.inspection.report import draw_losses, render_table, report_run

    reports = report_run(options.run_dir)
    print(render_table(reports))
    print()
    print(render_positions(losses_by_position(options.run_dir, reports[-1].unigram, checkpoint=options.checkpoint)))
    picture = options.run_dir / "loss.png"
    draw_losses(options.run_dir, reports, picture)
    print(f"\nloss curve: {picture}")
    if options.text:
        from megabert.inspection.guesses import compare_guesses

        print()
        print(compare_guesses(options.run_dir, options.text, options.checkpoint, counts=reports[-1].unigram.counts))
    if options.min_margin is not None and not reports[-1].margin >= options.min_margin:
        raise DataError(
            f"{options.run_dir}: the held-out loss is {reports[-1].margin:.3f} nats below the unigram baseline, "
            f"--min-margin asks for {options.min_margin:g}. Train longer, or on more text."
        )
    return 0
