"""Compare two runs, or one with its recipe's reference curves.

Of pre-trainings it compares fields of the configuration, and losses and every other train/ and eval/ tag at each step
that both logged: first difference, largest difference, rates. Of fine-tunings, and of the choices of grids, it compares
settings and scores, and shows which examples the second fixed or broke.

With the word reference, or a file of curves, in place of RUN_B it says whether the run is on track: within the spread
of runs of ours with other seeds. It names the step at which a series leaves its band. --png draws both.

Exit code 0: equal, or on track; 6: values, tags, logged steps or predictions differ, or not on track; 4: no run folder.

Arguments:
  RUN_A          run folder, or folder of a fine-tuning or grid
  RUN_B          the other one, reference, or curves (FILE.json)
  --tolerance X  relative difference that is equal (default: 0)
  --examples N   fine-tunings: how many fixed and broken examples are shown (default: 5)
  --png FILE     with reference curves: draw both into this picture
  --json         print the differences as JSON

Examples:
  megabert compare runs/demo reference --png track.png
  megabert compare runs/before runs/after --tolerance 1e-6
  megabert compare runs/mrpc runs/mrpc-longer --examples 20
"""

from argparse import Namespace
from pathlib import Path

from megabert.foundation.json_files import dumped
from megabert.settings.command_line.parser import Parser, bounded, number, positive, refuse_flags

EXIT_DIFFERENT = 6
"""Exit code of runs that differ. diff's 1 is a bug's here."""
REFERENCE = Path("reference")
"""The word for the shipped curves, unless there is a folder of that name."""


def add_arguments(parser: Parser) -> None:
    """Describe the command."""
    parser.add_argument("first", type=Path, metavar="RUN_A")
    parser.add_argument("second", type=Path, metavar="RUN_B")
    parser.add_argument("--tolerance", type=bounded(number, least=0), default=0.0)
    parser.add_argument("--examples", type=positive, default=5)
    parser.add_argument("--png", type=Path)
    parser.add_argument("--json", action="store_true")


def run(options: Namespace) -> int:
    """Compare and print; the exit code says whether the two agree."""
    from megabert.downstream.finetuning.grid.grid_results import is_finetuning

    if not options.second.is_dir() and (options.second == REFERENCE or options.second.suffix == ".json"):
        return _compare_with_curves(options)
    refuse_flags(["--png"], options.given, "on a comparison without reference curves")
    if is_finetuning(options.first) and is_finetuning(options.second):
        from megabert.downstream.finetuning.comparison import compare_finetunings, render_finetunings

        comparison = compare_finetunings(options.first, options.second, tolerance=options.tolerance)
        are_equal, report = comparison.are_equal, comparison.to_dict()
        text = render_finetunings(comparison, examples=options.examples)
    else:
        from megabert.tooling.reports.compare import compare_runs, render_comparison

        refuse_flags(["--examples"], options.given, "on a comparison of runs")
        runs = compare_runs(options.first, options.second, tolerance=options.tolerance)
        tags = {tag.tag: {"first": tag.first, "largest": tag.largest, "steps": tag.steps} for tag in runs.tags}
        are_equal, text = runs.are_equal, render_comparison(runs)
        report = {"equal": are_equal, "config": runs.config, "tags": tags, "one_sided": runs.one_sided}
    print(dumped(report) if options.json else text)
    return 0 if are_equal else EXIT_DIFFERENT


def _compare_with_curves(options: Namespace) -> int:
    """Say whether a run is on track, and draw it."""
    refuse_flags(["--tolerance", "--examples"], options.given, "on a comparison with reference curves")
    from megabert.foundation.files import atomic_write, refuse_input
    from megabert.tooling.reports.on_track import compare_with_curves, render_track, track_as_dict

    track = compare_with_curves(options.first, None if options.second == REFERENCE else options.second)
    if options.png:
        refuse_input(options.png, options.second, *(path for path in options.first.iterdir() if path.suffix != ".png"))
    print(dumped(track_as_dict(track)) if options.json else render_track(track))
    if options.png:
        from megabert.tooling.reports.curves import draw_track

        atomic_write(options.png, draw_track(track))
    return 0 if track.is_on_track else EXIT_DIFFERENT
