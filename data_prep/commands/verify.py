"""``megabert-data verify``."""

import argparse
from pathlib import Path

from data_prep.folders import shard_folders
from data_prep.parallel import available_cores, make_executor
from data_prep.verify import Verdict, verify
from megabert.errors import DataError

SHOWN_PROBLEMS = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the verb."""
    parser.add_argument("folder", type=Path, help="a build, or one folder of its shards")
    parser.add_argument("--workers", type=int, default=available_cores(), help="processes (default: all cores)")


def run(arguments: argparse.Namespace) -> int:
    """Check, print a line a folder; problems are one error."""
    folders = shard_folders(arguments.folder)
    with make_executor(arguments.workers) as executor:
        verdicts = {folder: verify(folder, executor) for folder in folders}
    problems = [problem for verdict in verdicts.values() for problem in verdict.problems]
    if problems:
        shown = "\n".join(f"  {problem}" for problem in problems[:SHOWN_PROBLEMS])
        raise DataError(f"{len(problems)} problem(s) found:\n{shown}")
    for folder, verdict in verdicts.items():
        print(_line(folder, verdict))
    return 0


def _line(folder: Path, verdict: Verdict) -> str:
    text = "compared with the documents" if verdict.is_text_compared else "documents not there to compare with"
    return f"{folder}: {verdict.shards} shards, {verdict.instances:,} instances, all sound ({text})"
