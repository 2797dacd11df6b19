"""Hash every shard again and check every instance.

Arguments:
  DIR     a build, or one folder of its shards
  --text  also compare every instance with the build's documents, three times as long

Example:
  megabert-data verify data/mine
"""

from argparse import Namespace
from pathlib import Path

from data_prep.checks.verify import check_build, verify
from data_prep.commands.options import add_worker_arguments
from data_prep.commands.stats import shard_folders
from data_prep.execution.mpi import executor_of_all_ranks
from megabert.foundation.errors import DataError
from megabert.settings.command_line.parser import Parser

SHOWN_PROBLEMS = 20
"""How many problems the error names; it counts them all."""
AS_FAST = 16
"""Bytes of shards that are checked in the time in which a build reads a byte of text, about."""


def add_arguments(parser: Parser) -> None:
    """Describe the command."""
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--text", action="store_true")
    add_worker_arguments(parser)


def run(options: Namespace) -> None:
    """Check, print a line a folder; problems are one error."""
    with executor_of_all_ranks(options.workers, is_mpi=options.mpi) as executor:
        if executor is None:
            return
        folders = shard_folders(options.folder)
        size = sum(path.lstat().st_size for folder in folders for path in folder.glob("*.arrow"))
        with executor.suited_to(size // AS_FAST) as workers:
            verdicts = {folder: verify(folder, workers, use_text=options.text) for folder in folders}
    problems = [problem for verdict in verdicts.values() for problem in verdict.problems]
    problems += check_build(options.folder, folders[0])
    if problems:
        shown = "\n".join(f"  {problem}" for problem in problems[:SHOWN_PROBLEMS])
        raise DataError(f"{len(problems)} problem(s) found:\n{shown}")
    text = ", compared with the documents" if options.text else ""
    for folder, verdict in verdicts.items():
        print(f"{folder}: {verdict.shards} shards, {verdict.instances:,} instances, all sound{text}")
