"""Limits and locale of this host, which break long runs rather than short ones."""

import locale
import resource
import shutil
from pathlib import Path

from megabert.doctor.finding import Finding

SHARED_MEMORY = Path("/dev/shm")
MIN_SHARED_MEMORY_GIB = 1.0
"""NCCL passes data between the GPUs of a node through shared memory; Docker's default of 64 MiB is too small."""
MIN_OPEN_FILES = 1024
"""A process opens sockets to the other ranks, shards and logs."""


def check_limits() -> list[Finding]:
    """Check the number of open files, the size of shared memory, and the locale."""
    findings = []
    open_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    is_low = open_files != resource.RLIM_INFINITY and open_files < MIN_OPEN_FILES
    findings.append(
        Finding(
            area="limits",
            level="failed" if is_low else "ok",
            text=f"open files: {_number(open_files)}" + (f", at least {MIN_OPEN_FILES} are needed" if is_low else ""),
            remedy="ulimit -n 65536 (in a job: before srun; for good: /etc/security/limits.conf)" if is_low else "",
        )
    )
    findings.append(_shared_memory())
    encoding = locale.getpreferredencoding(False)
    is_utf8 = encoding.lower().replace("-", "") == "utf8"
    findings.append(
        Finding(
            area="limits",
            level="ok" if is_utf8 else "note",
            text=f"locale: {encoding}",
            remedy=""
            if is_utf8
            else "Texts are read as UTF-8 whatever it says; messages may look broken: LC_ALL=C.UTF-8",
        )
    )
    return findings


def _shared_memory() -> Finding:
    if not SHARED_MEMORY.is_dir():
        text = f"{SHARED_MEMORY} is absent"
        size = 0.0
    else:
        size = shutil.disk_usage(SHARED_MEMORY).total / 2**30
        text = f"{SHARED_MEMORY}: {size:.1f} GiB"
    is_small = size < MIN_SHARED_MEMORY_GIB
    return Finding(
        area="limits",
        level="note" if is_small else "ok",
        text=text,
        remedy=f"NCCL may fail below {MIN_SHARED_MEMORY_GIB:g} GiB; containers: --shm-size=8g or --ipc=host"
        if is_small
        else "",
    )


def _number(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else str(limit)
