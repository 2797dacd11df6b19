"""Show the progress of a run: table, loss curve, fill-mask.

The table compares a run, phase by phase, with the unigram baseline. The loss curve is written as RUN/loss.png, if RUN
may be written, and, with --html and --png, one page of curves. With --text it shows the guesses for [MASK] of the
unigram, the untrained and the trained model side by side; the page shows some at held-out words. Of a fine-tuning it
prints the scores, which labels are taken for which, and the errors of which the model is surest; of a grid its tables,
and that for each choice. --html writes them into a page, too, and --png the scores of a grid over its settings.

Arguments:
  RUN                run folder, or folder of a fine-tuning or grid
  --text             a text with one [MASK] or more; repeatable
  --min-margin NATS  fail (exit 3) if the last held-out loss at [MASK] is not this far below the unigram baseline
  --html FILE        also write curves, tables and configuration as one self-contained page
  --png FILE         also write the page's curves as a picture
  --examples N       fine-tunings: how many errors are shown (default: 5)

Examples:
  megabert report runs/demo --text "He went to [MASK] sea." --html report.html
  megabert report runs/mrpc --examples 20
"""

import errno
import sys
from argparse import Namespace
from pathlib import Path

from megabert.foundation.errors import ConfigError, DataError
from megabert.settings.command_line.parser import Parser, output_path, positive, refuse_flags
from megabert.settings.command_line.terminal import loading

LOSSES = "loss.png"


def add_arguments(parser: Parser) -> None:
    """Describe the command."""
    parser.add_argument("run_dir", type=Path, metavar="RUN")
    parser.add_argument("--text", action="append", default=[])
    parser.add_checkpoint()
    parser.add_argument("--min-margin", type=float)
    parser.add_argument("--html", type=output_path)
    parser.add_argument("--png", type=output_path)
    parser.add_argument("--examples", type=positive, default=5)


def run(options: Namespace) -> None:
    """Print the table and the fill-mask examples, write the loss curve and the page."""
    from megabert.downstream.finetuning.grid.grid_results import is_finetuning

    if is_finetuning(options.run_dir):
        _report_finetuning(options)
        return
    refuse_flags(["--examples"], options.given, "on the report of a run")
    from megabert.training.run.folder import read_config

    run_dir = options.run_dir
    read_config(run_dir)  # refuses another folder before the seconds that torch takes
    with loading("PyTorch"):
        from megabert.downstream.finetuning.grid.grid_results import render_scores_below
        from megabert.downstream.inspection.fill_mask import compare_guesses
        from megabert.foundation.files import atomic_write
        from megabert.tooling.reports import report
        from megabert.tooling.reports.curves import draw_losses, draw_page, render_run_page

    _refuse_files_of_run(options)
    # The tables; positions and guesses are compared with the last validated phase's word frequencies.
    reports = report.report_run(run_dir)
    last = reports[-1]
    positions = report.score_positions(run_dir, last, checkpoint=options.checkpoint)
    tables = [("Phases", report.render_reports(reports)), ("Held-out positions", report.render_positions(positions))]
    # Without a text, the page shows guesses at words of the held-out split.
    samples = report.held_out_samples(run_dir, last.index) if options.html and not options.text else []
    if options.text or samples:
        texts, words = options.text or [text for text, _ in samples], [word for _, word in samples]
        counts = last.unigram.counts
        guesses = compare_guesses(run_dir, texts, options.checkpoint, counts=counts, words=words)
        tables.append(("Guesses", guesses))
    below = render_scores_below(run_dir)
    if below:
        tables.append(("Fine-tunings", below))
    print("\n\n".join(text for _, text in tables))
    # The pictures and the page.
    try:
        draw_losses(run_dir, reports, run_dir / LOSSES)
        print(f"\nloss curve: {run_dir / LOSSES}")
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        print(f"\nno loss curve: {run_dir} may not be written ({error.strerror})", file=sys.stderr)
    if options.html or options.png:
        curves = draw_page(run_dir, reports)
    if options.png:
        atomic_write(options.png, curves)
        print(f"curves: {options.png}")
    if options.html:
        atomic_write(options.html, render_run_page(run_dir, curves, tables))
        print(f"page: {options.html}")
    margin = positions[0].unigram - positions[0].model  # at [MASK]
    if options.min_margin is not None and not margin >= options.min_margin:
        raise DataError(
            f"{run_dir}: the held-out loss at [MASK] is {margin:.3f} nats below the unigram baseline, --min-margin "
            f"asks for {options.min_margin:g}. Train longer, or on more text."
        )


def _refuse_files_of_run(options: Namespace) -> None:
    """Refuse an output that would replace a file of the run, but for an earlier picture or page of it."""
    from megabert.foundation.files import refuse_input

    own = [path for path in options.run_dir.iterdir() if path.is_file() and path.suffix not in (".png", ".html")]
    for output in filter(None, (options.html, options.png)):
        refuse_input(output, *own)
        if output.name == LOSSES and output.absolute().parent.resolve() == options.run_dir.resolve():
            raise ConfigError(f"{output}: the loss curve has this name. Name another file.")


def _report_finetuning(options: Namespace) -> None:
    """Print scores, confusions and errors of a fine-tuning, or of each choice of a grid below the grid's tables."""
    from megabert.downstream.finetuning.comparison import render_report
    from megabert.downstream.finetuning.grid.grid_results import is_grid, read_grid, read_summaries, render_grid
    from megabert.downstream.finetuning.seed_results import GRID_NAME, SETTINGS_NAME
    from megabert.foundation.files import atomic_write

    run_dir: Path = options.run_dir
    has_grid = is_grid(run_dir)
    idle = ["--text", "--checkpoint", "--min-margin", *([] if has_grid else ["--png"])]
    refuse_flags(idle, options.given, "on the report of a fine-tuning")
    _refuse_files_of_run(options)
    sections = [
        (name, render_report(folder, summary, examples=options.examples))
        for name, (folder, summary) in read_summaries(run_dir).items()
    ]
    picture = b""
    if has_grid:
        from megabert.downstream.finetuning.grid.grid_results import draw_grid

        grid = read_grid(run_dir)
        sections[:0] = zip(("The choices", "Every setting"), render_grid(grid), strict=True)
        picture = draw_grid(grid) if options.html or options.png else b""
    print("\n\n\n".join(text for _, text in sections))
    if options.png:
        atomic_write(options.png, picture)
        print(f"curves: {options.png}")
    if options.html:
        from megabert.tooling.reports.curves import folded, image, render_page, section

        parts = [image("scores over learning rates", picture)] if has_grid else []
        parts += [section(title, text) for title, text in sections]
        parts += [folded(run_dir / (GRID_NAME if has_grid else SETTINGS_NAME))]
        atomic_write(options.html, render_page(run_dir, parts))
        print(f"page: {options.html}")
