"""The run folder's disk: whether it can be written, how fast, and how full it is."""

import os
import shutil
import time
import uuid
from pathlib import Path

from megabert.doctor.finding import Finding

FULL_BYTES = 256 * 2**20
QUICK_BYTES = 2**20
"""Size of the file that is written; the small one, of ``--quick``, is not timed."""
MIN_FREE_GIB = 1.0


def check_disk(run_dir: Path, *, is_quick: bool) -> list[Finding]:
    """Write, sync, read and delete a file where the run folder is, or will be; nothing is left behind."""
    folder = existing(run_dir)
    size = QUICK_BYTES if is_quick else FULL_BYTES
    path = folder / f".megabert-doctor-{uuid.uuid4().hex}"
    try:
        write_s, read_s = _time_file(path, size)
    except OSError as error:
        return [
            Finding(
                area="disk",
                level="failed",
                text=f"{folder}: cannot be written ({error.strerror})",
                remedy="Name a folder that you may write and that has space: --run-dir.",
            )
        ]
    finally:
        path.unlink(missing_ok=True)
    free = shutil.disk_usage(folder).free / 2**30
    text = f"{folder} can be written"
    if not is_quick:
        mib = size / 2**20
        speed = f"{mib / write_s:.0f} MiB/s written and synced, {mib / read_s:.0f} MiB/s read (perhaps from memory)"
        text = f"{folder}: {speed}, {free:.0f} GiB free"
    findings = [Finding(area="disk", level="ok", text=text)]
    if free < MIN_FREE_GIB:
        text = f"{folder}: less than {MIN_FREE_GIB:g} GiB free"
        remedy = "megabert pretrain --dry-run says what the checkpoints take."
        findings.append(Finding(area="disk", level="note", text=text, remedy=remedy))
    return findings


def existing(path: Path) -> Path:
    """Return the path, or its nearest parent that exists."""
    return next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.is_dir())


def _time_file(path: Path, size: int) -> tuple[float, float]:
    block = os.urandom(2**20)  # nothing that a disk could compress
    started = time.perf_counter()
    with path.open("wb") as file:
        for _ in range(size // len(block)):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    written = time.perf_counter()
    with path.open("rb") as file:
        while file.read(2**20):
            pass
    return written - started, time.perf_counter() - written
