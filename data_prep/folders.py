"""Finding the folders of shards in what a user names."""

from pathlib import Path

from megabert.errors import DataError
from megabert.schema import MANIFEST_NAME


def shard_folders(folder: Path) -> list[Path]:
    """Return the folders of shards of a build, shortest length first, or the folder itself if it is one.

    Raises:
        DataError: The folder is neither.
    """
    if (folder / MANIFEST_NAME).is_file():
        return [folder]
    found = sorted(
        (path for path in (folder / "instances").glob("*") if path.is_dir()), key=lambda path: int(path.name)
    )
    if not found:
        raise DataError(
            f"{folder}: neither a build nor a folder of shards. Name the --output of `megabert-data build`."
        )
    return found
