"""``megabert-data stats``."""

import argparse
from pathlib import Path

from data_prep.folders import shard_folders
from data_prep.stats import show_stats
from megabert.schema import read_manifest


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the verb."""
    parser.add_argument("folder", type=Path, help="a build, or one folder of its shards")


def run(arguments: argparse.Namespace) -> int:
    """Print the report."""
    folders = shard_folders(arguments.folder)
    print("\n".join(show_stats(folders, [read_manifest(folder) for folder in folders])))
    return 0
