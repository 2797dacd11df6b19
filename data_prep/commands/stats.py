"""``megabert-data stats``."""

import argparse
from pathlib import Path

from data_prep.checks.stats import show_stats
from data_prep.folders import shard_folders
from megabert.schema import read_manifest


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the verb."""
    parser.add_argument("folder", type=Path, help="a build, or one folder of its shards")
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="also write PNG pictures there")


def run(arguments: argparse.Namespace) -> int:
    """Print the report."""
    folders = shard_folders(arguments.folder)
    manifests = [read_manifest(folder) for folder in folders]
    print("\n".join(show_stats(folders, manifests)))
    if arguments.plots is not None:
        from data_prep.checks.plots import write_plots

        for path in write_plots(arguments.plots, [folder.name for folder in folders], manifests):
            print(f"picture {path}")
    return 0
