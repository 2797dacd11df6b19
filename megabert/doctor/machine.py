"""Limits and locale of this host, which break long runs rather than short ones."""

import locale
import resource
import shutil
from pathlib import Path

from megabert.doctor.finding import Finding, verdict_on

SHARED_MEMORY = Path("/dev/shm")
MIN_SHARED_MEMORY_GIB = 1.0
"""NCCL passes data between the GPUs of a node through shared memory; Docker's default of 64 MiB is too small."""
MIN_OPEN_FILES = 1024
"""A process opens sockets to the other ranks, shards and logs."""


def check_limits() -> list[Finding]:
    """Check the number of open files, the size of shared memory, and the locale."""
    open_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    is_unlimited = open_files == resource.RLIM_INFINITY
    is_enough = is_unlimited or open_files >= MIN_OPEN_FILES
    number = "unlimited" if is_unlimited else str(open_files)
    has_shared_memory = SHARED_MEMORY.is_dir()
    size = shutil.disk_usage(SHARED_MEMORY).total / 2**30 if has_shared_memory else 0.0
    encoding = locale.getpreferredencoding(False)
    return [
        verdict_on(
            "limits",
            is_enough,
            f"open files: {number}" + ("" if is_enough else f", at least {MIN_OPEN_FILES} are needed"),
            "ulimit -n 65536 (in a job: before srun; for good: /etc/security/limits.conf)",
            otherwise="failed",
        ),
        verdict_on(
            "limits",
            size >= MIN_SHARED_MEMORY_GIB,
            f"{SHARED_MEMORY}: {size:.1f} GiB" if has_shared_memory else f"{SHARED_MEMORY} is absent",
            f"NCCL may fail below {MIN_SHARED_MEMORY_GIB:g} GiB; containers: --shm-size=8g or --ipc=host",
        ),
        verdict_on(
            "limits",
            encoding.lower().replace("-", "") == "utf8",
            f"locale: {encoding}",
            "Texts are read as UTF-8 whatever it says; messages may look broken: LC_ALL=C.UTF-8",
        ),
    ]
