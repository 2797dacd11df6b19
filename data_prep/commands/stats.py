"""Print the contents of a build and the text that was dropped.

Example:
  megabert-data stats data/mine --plots data/mine/plots
"""

import re
from argparse import Namespace
from pathlib import Path

from data_prep.checks.stats import as_damage, show_stats, write_plots
from megabert.command_line.program import Parser
from megabert.errors import DataError
from megabert.shards import MANIFEST_NAME, read_manifest


def add_arguments(parser: Parser) -> None:
    """Describe the command."""
    parser.add_argument("folder", type=Path, metavar="DIR", help="a build, or one folder of its shards")
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="also write PNG pictures there")


def run(options: Namespace) -> int:
    """Print the report."""
    folders = shard_folders(options.folder)
    manifests = [read_manifest(folder) for folder in folders]
    with as_damage(options.folder, "Delete the manifests and run the same build again, which writes them again."):
        print("\n".join(show_stats(folders, manifests)))
        if options.plots is not None:
            for path in write_plots(options.plots, [folder.name for folder in folders], manifests):
                print(f"picture {path}")
    return 0


def shard_folders(folder: Path) -> list[Path]:
    """Return the folders of shards of a build, shortest length first, or the folder itself if it is one.

    Raises:
        DataError: The folder is neither.
    """
    if (folder / MANIFEST_NAME).exists():
        return [folder]
    lengths = (path for path in folder.glob("instances/*") if re.fullmatch("[0-9]{1,18}", path.name))
    folders = sorted((path for path in lengths if path.is_dir()), key=lambda path: int(path.name))
    if not folders:
        raise DataError(
            f"{folder}: neither a build nor a folder of shards. Name the --output of `megabert-data build`."
        )
    return folders
