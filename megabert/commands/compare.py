"""``megabert compare``: two runs step by step, or two fine-tunings example by example."""

import json
from argparse import ArgumentTypeError, Namespace
from pathlib import Path

from megabert.command_line.program import Parser, number, positive
from megabert.errors import ConfigError

EXIT_DIFFERENT = 6
"""Exit code of runs that differ. diff's 1 is a bug's here."""


def add_arguments(parser: Parser) -> None:
    """Describe the command."""
    parser.description = (
        "Compare two runs: fields of the configuration, losses and every other train/ and eval/ tag at each step that "
        "both logged: first difference, largest difference, rates. Or compare two fine-tunings: settings, scores, and "
        "which examples the second fixed or broke."
    )
    parser.notes = (
        f"exit code 0: equal; {EXIT_DIFFERENT}: values, tags, logged steps or predictions differ; 4: no run folder."
    )
    parser.examples = [
        "megabert compare runs/before runs/after --tolerance 1e-6",
        "megabert compare runs/mrpc runs/mrpc-longer --examples 20",
    ]
    parser.add_argument("first", type=Path, metavar="RUN_A", help="run folder, or folder of a fine-tuning")
    parser.add_argument("second", type=Path, metavar="RUN_B", help="the other one")
    parser.add_argument(
        "--tolerance", type=_tolerance, default=0.0, metavar="X", help="relative difference that is equal (default: 0)"
    )
    text = "fine-tunings: how many fixed and broken examples are shown (default: 5)"
    parser.add_argument("--examples", type=positive, metavar="N", help=text)
    parser.add_argument("--json", action="store_true", help="print the differences as JSON")


def run(options: Namespace) -> int:
    """Compare, print, and tell by the exit code."""
    from megabert.finetuning.results import is_finetuning

    if is_finetuning(options.first) and is_finetuning(options.second):
        return _compare_finetunings(options)
    if options.examples is not None:
        raise ConfigError("--examples: changes nothing in a comparison of runs. Leave it out.")
    from megabert.reports.compare import compare_runs, render_comparison

    comparison = compare_runs(options.first, options.second, tolerance=options.tolerance)
    if options.json:
        tags = {tag.tag: {"first": tag.first, "largest": tag.largest, "steps": tag.steps} for tag in comparison.tags}
        report = {
            "equal": comparison.are_equal,
            "config": comparison.config,
            "tags": tags,
            "one_sided": comparison.one_sided,
        }
        print(json.dumps(report, indent=2))
    else:
        print(render_comparison(comparison))
    return 0 if comparison.are_equal else EXIT_DIFFERENT


def _compare_finetunings(options: Namespace) -> int:
    from megabert.finetuning.comparison import compare_finetunings, render_finetunings

    comparison = compare_finetunings(options.first, options.second, tolerance=options.tolerance)
    if options.json:
        print(json.dumps(comparison.to_dict(), indent=2))
    else:
        print(render_finetunings(comparison, examples=options.examples or 5))
    return 0 if comparison.are_equal else EXIT_DIFFERENT


def _tolerance(text: str) -> float:
    """Read a number of 0 or more; nothing is above NaN, so it would make all runs equal."""
    value = number(text)
    if not value >= 0:
        raise ArgumentTypeError(f"{text} is not 0 or more")
    return value
