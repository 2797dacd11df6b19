"""Folders that appear whole or not at all, and what killed processes left of them."""

import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from megabert.foundation import files
from megabert.foundation.errors import DataError

UNFINISHED = ".unfinished"
"""Marks a temporary folder as ours, and is locked for as long as its process lives."""
_ASIDE = "previous"
"""The name, in a temporary folder, of what its content replaces."""


@contextmanager
def publish_folder(folder: Path | str) -> Iterator[Path]:
    """Yield an empty temporary folder; on success it is synced with all that is in it and becomes ``folder``.

    A folder that is already there is moved aside for the moment of the exchange and removed afterwards, so a reader
    sees the previous content or the new one, never half of either. On any error the temporary folder is removed and
    ``folder`` is as it was. The next process removes the temporary folder of a killed one.

    The working folder has to be empty, and stays: the shell in it would not see another one in its place.

    Raises:
        DataError: ``folder`` is a file, a device, a loop of links or a working folder with files, or the disk is full.
    """
    folder = Path(folder)
    files.check_replaceable(folder, is_folder=True)
    is_here = folder.is_dir() and folder.samefile(os.curdir)
    # Made within the working folder, whose parent may be another disk or closed.
    place = folder / "content" if is_here else folder
    _remove_unfinished(place)
    if is_here and any(folder.iterdir()):
        raise DataError(f"{folder}: is the working folder, and not empty. Call the command from another folder.")
    with files.under_way(place) as temporary:
        new = temporary / "new"
        new.mkdir(parents=True)
        with files.open_lock(temporary / UNFINISHED) as mark:
            files.try_lock(mark, fcntl.LOCK_EX)
            yield new
            for path in new.rglob("*"):
                files.sync_file(path)
            files.sync_folder(new)
            if is_here:
                for path in new.iterdir():
                    path.rename(folder / path.name)
                files.sync_folder(folder)
            else:
                replace_folder(new, folder, aside=temporary / _ASIDE)


def _remove_unfinished(folder: Path) -> None:
    """Remove what killed processes left of ``publish_folder``: marked as ours, and locked by nobody who still lives."""
    pattern = re.compile(rf"\.{re.escape(folder.name[: files.NAME_SHOWN])}\.[0-9a-f]{{8}}\.tmp")
    for path in folder.parent.iterdir() if folder.parent.is_dir() else ():
        if pattern.fullmatch(path.name) and not path.is_symlink() and (path / UNFINISHED).is_file():
            try:
                with files.open_lock(path / UNFINISHED) as mark:
                    if files.try_lock(mark, fcntl.LOCK_EX):
                        # Killed in the moment of the exchange: the previous content is still aside.
                        if (path / _ASIDE).is_dir() and not os.path.lexists(folder):
                            (path / _ASIDE).rename(folder)
                        shutil.rmtree(path, ignore_errors=True)
            except (OSError, DataError):  # another process is writing it, or may write where we may not
                continue


def replace_folder(new: Path, folder: Path, *, aside: Path | None = None) -> None:
    """Rename ``new`` to ``folder`` durably; if that fails, the previous ``folder`` gets its name back.

    Args:
        new: A finished folder next to ``folder``.
        folder: The path that it is renamed to.
        aside: Path of the previous ``folder`` during the exchange, for callers that look for it after a kill.
    """
    # A folder with content cannot be replaced by one rename. After a kill between the two, ``folder`` is missing, and
    # the previous one is complete under the name ``aside``.
    aside = aside or new.with_name(f"{new.name}.old")
    is_replaced = os.path.lexists(folder)
    if is_replaced:
        folder.rename(aside)
    try:
        new.rename(folder)
    except OSError:
        if is_replaced:
            aside.rename(folder)
        raise
    files.sync_folder(folder.parent)
    if is_replaced:
        aside.unlink() if aside.is_symlink() else shutil.rmtree(aside, ignore_errors=True)
