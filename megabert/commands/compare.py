"""``megabert compare``: two runs step by step."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

EXIT_DIFFERENT = 6
"""Not diff's 1, which is a bug's here."""


def run(arguments: Sequence[str]) -> int:
    """Compare and tell by the exit code."""
    parser = argparse.ArgumentParser(
        prog="megabert compare",
        description="Compare two runs: fields of the configuration, losses and every other train/ and eval/ tag at "
        "each step that both logged: first difference, largest difference, rates.",
        epilog=f"exit code 0: equal; {EXIT_DIFFERENT}: values, tags or logged steps differ; 4: no run folder.\n"
        "example: megabert compare runs/before runs/after --tolerance 1e-6",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("first", type=Path, metavar="RUN_A", help="run folder")
    parser.add_argument("second", type=Path, metavar="RUN_B", help="run folder")
    parser.add_argument(
        "--tolerance", type=float, default=0.0, metavar="X", help="relative difference that is equal (default: 0)"
    )
    parser.add_argument("--json", action="store_true", help="print the differences as JSON")
    options = parser.parse_args(arguments)

    from megabert.reports.compare import compare_runs, render_comparison

    found = compare_runs(options.first, options.second, tolerance=options.tolerance)
    if options.json:
        tags = {tag.tag: {"first": tag.first, "largest": tag.largest, "steps": tag.steps} for tag in found.tags}
        report = {"equal": found.are_equal, "config": found.config, "tags": tags, "one_sided": found.one_sided}
        print(json.dumps(report, indent=2))
    else:
        print(render_comparison(found))
    return 0 if found.are_equal else EXIT_DIFFERENT
