"""``megabert report``: what a run has learned."""

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from megabert.command_line.program import Parser
from megabert.errors import DataError

if TYPE_CHECKING:
    from megabert.reports.report import PhaseReport


def add_arguments(parser: Parser) -> None:
    """Describe the command."""
    parser.description = (
        "Print one table of what a run has learned, phase by phase, next to the unigram baseline; write the loss "
        "curve as RUN/loss.png; with --text, show guesses for [MASK] of the unigram, the untrained and the trained "
        "model side by side. --html and --png write one page of curves as well."
    )
    parser.examples = ['megabert report runs/demo --text "He went to [MASK] sea." --html report.html']
    parser.add_argument("run_dir", type=Path, metavar="RUN", help="run folder")
    parser.add_argument("--text", action="append", default=[], help="a text with one [MASK] or more; repeatable")
    parser.add_checkpoint()
    parser.add_argument(
        "--min-margin",
        type=float,
        metavar="NATS",
        help="fail (exit 3) if the last held-out loss is not this far below the unigram baseline",
    )
    text = "also write curves, tables and configuration as one self-contained page"
    parser.add_argument("--html", type=Path, metavar="FILE", help=text)
    parser.add_argument("--png", type=Path, metavar="FILE", help="also write the page's curves as a picture")


def run(options: Namespace) -> int:
    """Print the table and the fill-mask examples, write the loss curve."""
    from megabert.reports.report import draw_losses, report_run

    reports = report_run(options.run_dir)
    tables = _tables(options, reports)
    print("\n\n".join(text for _, text in tables))
    picture = options.run_dir / "loss.png"
    draw_losses(options.run_dir, reports, picture)
    print(f"\nloss curve: {picture}")
    if options.html or options.png:
        _write_page(options, reports, tables)
    if options.min_margin is not None and not reports[-1].margin >= options.min_margin:
        raise DataError(
            f"{options.run_dir}: the held-out loss is {reports[-1].margin:.3f} nats below the unigram baseline, "
            f"--min-margin asks for {options.min_margin:g}. Train longer, or on more text."
        )
    return 0


def _tables(options: Namespace, reports: "list[PhaseReport]") -> list[tuple[str, str]]:
    """Return headings and texts; positions and guesses use the last validated phase's word frequencies."""
    from megabert.inspection.unigram_guesses import compare_guesses
    from megabert.reports.loss_by_position import losses_by_position, render_positions
    from megabert.reports.report import render_reports

    run_dir, checkpoint, last = options.run_dir, options.checkpoint, reports[-1]
    positions = losses_by_position(run_dir, last.unigram, phase=last.index, checkpoint=checkpoint)
    tables = [("Phases", render_reports(reports)), ("Held-out positions", render_positions(positions))]
    if options.text:
        tables.append(("Guesses", compare_guesses(run_dir, options.text, checkpoint, counts=last.unigram.counts)))
    return tables


def _write_page(options: Namespace, reports: "list[PhaseReport]", tables: list[tuple[str, str]]) -> None:
    from megabert.reports.html_report import draw_page, render_page
    from megabert.schema import atomic_write

    curves = draw_page(options.run_dir, reports)
    if options.png:
        options.png.write_bytes(curves)
        print(f"curves: {options.png}")
    if options.html:
        atomic_write(options.html, render_page(options.run_dir, curves, tables))
        print(f"page: {options.html}")
