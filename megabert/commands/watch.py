"""``megabert watch``: the state of a run, refreshed on a terminal."""

import sys
import time
from argparse import Namespace
from pathlib import Path

from megabert.command_line.program import Parser
from megabert.command_line.terminal import unfiltered
from megabert.errors import ConfigError

CLEAR = "\x1b[H\x1b[J"
"""ANSI codes: cursor to the top left, erase what follows."""
FINAL = ("done", "failed")
"""Verdicts after which nothing changes any more."""

MAX_INTERVAL_S = 86_400


def add_arguments(parser: Parser) -> None:
    """Describe the command."""
    parser.description = (
        "Show loss, rate, time left, last checkpoint, restarts and skipped steps of a run, from its metrics.jsonl and "
        "status.json; on a terminal again and again until the run is done or has failed, else once."
    )
    parser.examples = ["megabert watch runs/large --interval 10"]
    parser.add_argument("run_dir", type=Path, metavar="RUN", help="run folder")
    parser.add_argument("--once", action="store_true", help="show it once (also when the output is no terminal)")
    parser.add_argument("--interval", type=float, default=2.0, metavar="S", help="seconds between looks (default: 2)")


def run(options: Namespace) -> int:
    """Show the run until it ends, or once."""
    if not 0 < options.interval <= MAX_INTERVAL_S:
        raise ConfigError(f"--interval {options.interval:g}: give seconds above 0, and at most {MAX_INTERVAL_S:,}.")

    from megabert.reports.watch import read_overview

    is_repeated = sys.stdout.isatty() and not options.once
    while True:
        overview = read_overview(options.run_dir)
        if is_repeated:
            unfiltered(sys.stdout).write(CLEAR)
        print(overview.text, flush=True)
        if not is_repeated or overview.verdict.startswith(FINAL):
            return 0
        time.sleep(options.interval)
