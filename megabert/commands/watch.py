"""Show a run: loss, rate, time left, last checkpoint.

These, restarts and skipped steps come from its metrics.jsonl and status.json; on a terminal again and again until the
run is done or has failed, else once.

Arguments:
  RUN           run folder
  --once        show it once (also when the output is no terminal)
  --interval S  seconds between looks (default: 2)

Example:
  megabert watch runs/large --interval 10
"""

import sys
import time
from argparse import Namespace
from pathlib import Path

from megabert.settings.command_line.parser import Parser, bounded, number
from megabert.settings.command_line.terminal import unfiltered

CLEAR = "\x1b[H\x1b[J"
"""ANSI codes: cursor to the top left, erase everything after it."""
FINAL = ("done", "failed")
"""Verdicts after which nothing changes any more."""
DAY_S = 86_400


def add_arguments(parser: Parser) -> None:
    """Describe the command."""
    parser.add_argument("run_dir", type=Path, metavar="RUN")
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--interval", type=bounded(number, above=0, most=DAY_S), default=2.0)


def run(options: Namespace) -> None:
    """Show the run until it ends, or once."""
    from megabert.tooling.reports.watch import read_overview

    is_repeated = sys.stdout.isatty() and not options.once
    while True:
        overview = read_overview(options.run_dir)
        if is_repeated:
            unfiltered(sys.stdout).write(CLEAR)
        print(overview.text, flush=True)
        if not is_repeated or overview.verdict.startswith(FINAL):
            return
        time.sleep(options.interval)
