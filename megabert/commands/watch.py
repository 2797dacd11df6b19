"""``megabert watch``: how a run stands, refreshed on a terminal."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from megabert.errors import ConfigError

CLEAR = "\x1b[H\x1b[J"
"""ANSI: cursor to the top left, erase what follows."""
FINAL = ("done", "failed")


def run(arguments: Sequence[str]) -> int:
    """Show the run until it ends, or once."""
    parser = argparse.ArgumentParser(
        prog="megabert watch",
        description="Show loss, rate, time left, last checkpoint, restarts and skipped steps of a run, from its "
        "metrics.jsonl and status.json; on a terminal again and again until the run is done or has failed, else once.",
        epilog="example: megabert watch runs/large --interval 10",
    )
    parser.add_argument("run_dir", type=Path, metavar="RUN", help="run folder")
    parser.add_argument("--once", action="store_true", help="show it once (also when the output is no terminal)")
    parser.add_argument("--interval", type=float, default=2.0, metavar="S", help="seconds between looks (default: 2)")
    options = parser.parse_args(arguments)
    if options.interval <= 0:
        raise ConfigError(f"--interval {options.interval:g} must be above 0 seconds.")

    from megabert.reports.watch import render_snapshot, take_snapshot

    is_repeated = sys.stdout.isatty() and not options.once
    while True:
        found = take_snapshot(options.run_dir)
        print((CLEAR if is_repeated else "") + render_snapshot(found), flush=True)
        if not is_repeated or found.verdict.startswith(FINAL):
            return 0
        time.sleep(options.interval)
