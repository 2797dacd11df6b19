"""No room to write: the error for a full disk, a quota or a limit of file size, and what Rust libraries say of it."""

import errno
import os
import re
import resource
import shutil
from pathlib import Path

from megabert.foundation.errors import HaltedError

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""The disk, a quota or a limit of file size (``ulimit -f``) leaves no room."""


def existing_folder(path: Path) -> Path:
    """Return the folder at a path, or else its nearest parent that exists."""
    return next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.is_dir())


def disk_full(path: Path, error: OSError) -> HaltedError:
    """Return the error for a write to ``path`` that failed for lack of space: of the disk, a quota or a limit."""
    finished = "What was finished is kept"
    if error.errno == errno.EFBIG:
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        allowed = "the file system's" if limit == resource.RLIM_INFINITY else f"{limit:,} bytes (ulimit -f)"
        return HaltedError(
            f"{path}: would be larger than the limit of file size, {allowed}. {finished}: raise the limit "
            "(ulimit -f unlimited), or name a folder on another disk, and run the same command again."
        )
    free_mib = shutil.disk_usage(existing_folder(path.parent)).free / 2**20
    lack = "your quota is used up" if error.errno == errno.EDQUOT else "no space left"
    return HaltedError(
        f"{path.parent}: {lack} while {path.name} was written ({free_mib:.1f} MiB free). "
        f"{finished}: free some space and run the same command again."
    )


def library_error(error: Exception) -> OSError | None:
    """Return the system's error that a library in Rust reports in words, such as "(os error 28)"; None for another."""
    number = re.search(r"\(os error (\d+)\)", str(error))
    return OSError(int(number[1]), os.strerror(int(number[1]))) if number else None
