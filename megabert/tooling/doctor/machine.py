"""This host without its devices: versions, limits, the run folder's disk, SLURM. Nothing here needs torch."""

import errno
import importlib
import importlib.util
import locale
import os
import platform
import resource
import shutil
import subprocess
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

from megabert.foundation.full_disk import existing_folder
from megabert.observability.environment import package_versions
from megabert.tooling.doctor.finding import Finding, failure, verdict_on

NEEDED = ("deepspeed", "numpy", "pyarrow", "tokenizers", "safetensors", "tensorboard", "pydantic", "yaml")
"""Modules without which nothing trains; torch has a check of its own."""
SHARED_MEMORY = Path("/dev/shm")
MIN_SHARED_MEMORY_GIB = 1.0
"""NCCL passes data between the GPUs of a node through shared memory; Docker's default of 64 MiB is too small."""
MIN_OPEN_FILES = 1024
"""A process opens sockets to the other ranks, shards and logs."""
OPEN_FILES_REMEDY = "ulimit -n 65536 (in a job: before srun; for good: /etc/security/limits.conf)"
SHARED_MEMORY_REMEDY = f"NCCL may fail below {MIN_SHARED_MEMORY_GIB:g} GiB; containers: --shm-size=8g or --ipc=host"
LOCALE_REMEDY = "Texts are read as UTF-8 in any locale; messages may look broken: LC_ALL=C.UTF-8"
FULL_BYTES = 256 * 2**20
QUICK_BYTES = 2**20
"""Size of the file that is written; the small one, of ``--quick``, is not timed."""
MIN_FREE_GIB = 1.0


def check_versions() -> list[Finding]:
    """Name the versions; a module that is needed and cannot be found is a failure."""
    versions = ", ".join(f"{name} {version}" for name, version in package_versions().items())
    found = Finding(area="versions", level="ok", text=f"python {platform.python_version()}, {versions}")
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    return [found, *(failure("versions", f"{name} is not importable", "make install") for name in missing)]


def check_torch() -> list[Finding]:
    """Import torch, and return a finding only if that fails: then no other check that needs torch can run."""
    try:
        importlib.import_module("torch")
    except (ImportError, OSError) as error:  # OSError: one of its libraries is damaged, or is not for this machine
        return [failure("versions", f"torch is not importable: {error}", "make install")]
    return []


def check_limits() -> list[Finding]:
    """Check the number of open files, the size of shared memory, and the locale."""
    open_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    number = "unlimited" if open_files == resource.RLIM_INFINITY else str(open_files)
    has_enough = number == "unlimited" or open_files >= MIN_OPEN_FILES
    has_memory = SHARED_MEMORY.is_dir()
    size = shutil.disk_usage(SHARED_MEMORY).total / 2**30 if has_memory else 0.0
    encoding = locale.getpreferredencoding(False)
    files = f"open files: {number}" + ("" if has_enough else f", at least {MIN_OPEN_FILES} are needed")
    memory = f"{SHARED_MEMORY}: {size:.1f} GiB" if has_memory else f"{SHARED_MEMORY} is absent"
    is_utf8 = encoding.lower().replace("-", "") == "utf8"
    return [
        verdict_on("limits", has_enough, files, OPEN_FILES_REMEDY, otherwise="failed"),
        verdict_on("limits", size >= MIN_SHARED_MEMORY_GIB, memory, SHARED_MEMORY_REMEDY),
        verdict_on("limits", is_utf8, f"locale: {encoding}", LOCALE_REMEDY),
    ]


def check_disk(run_dir: Path, *, is_quick: bool) -> list[Finding]:
    """Write, sync, read and delete a file where the run folder is, or will be; nothing is left over."""
    folder = existing_folder(run_dir)
    try:
        write_rate, read_rate = time_disk(folder, QUICK_BYTES if is_quick else FULL_BYTES)
    except OSError as error:
        return [describe_disk_error(folder, error)]
    free = shutil.disk_usage(folder).free / 2**30
    text = f"{folder} can be written"
    if not is_quick:
        speed = f"{write_rate:.0f} MiB/s written and synced, {read_rate:.0f} MiB/s read (perhaps from memory)"
        text = f"{folder}: {speed}, {free:.0f} GiB free"
    is_enough = free >= MIN_FREE_GIB
    text += "" if is_enough else f", but has less than {MIN_FREE_GIB:g} GiB free"
    return [verdict_on("disk", is_enough, text, "megabert pretrain --dry-run says what the checkpoints take.")]


def time_disk(folder: Path, size: int) -> tuple[float, float]:
    """Write and sync a file of ``size`` bytes, read it back and delete it; return the MiB/s of both.

    Raises:
        OSError: The folder cannot be written; with ``EIO`` also if other bytes came back than were written.
    """
    path, blocks = folder / f".megabert-doctor-{uuid.uuid4().hex}", size >> 20
    block = os.urandom(2**20)  # nothing that a disk could compress
    try:
        started = time.perf_counter()
        with path.open("xb") as file:
            for _ in range(blocks):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
            # The file leaves the memory of this host, if its file system can do so, and the disk itself is read.
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        written = time.perf_counter()
        with path.open("rb") as file:
            for number in range(blocks):
                if file.read(len(block)) != block:
                    raise OSError(errno.EIO, f"MiB {number} of a file of {blocks} MiB came back with other bytes")
        return blocks / (written - started), blocks / (time.perf_counter() - written)
    finally:
        path.unlink(missing_ok=True)


def describe_disk_error(folder: Path, error: OSError) -> Finding:
    """Return the finding about a folder where ``time_disk`` has failed."""
    what, remedy = f"cannot be written ({error.strerror})", "Name a folder that you may write and that has space"
    if error.errno == errno.EIO:
        what, remedy = str(error.strerror), "This file system is broken: name a folder on another one"
    return failure("disk", f"{folder}: {what}", f"{remedy}: --run-dir.")


def check_slurm(environment: Mapping[str, str] = os.environ) -> list[Finding]:
    """Describe the job that this process is part of, or the SLURM that could start one."""
    job = environment.get("SLURM_JOB_ID")
    if job is None:
        return [Finding(area="slurm", level="ok", text=_outside())]
    nodes = environment.get("SLURM_JOB_NODELIST", "?")
    tasks = environment.get("SLURM_STEP_NUM_TASKS") or environment.get("SLURM_NTASKS", "?")
    text = f"job {job}, {environment.get('SLURM_JOB_NUM_NODES', '?')} node(s): {nodes}, {tasks} task(s)"
    asked, given = environment.get("SLURM_CPUS_PER_TASK", ""), len(os.sched_getaffinity(0))
    is_given = not asked.isdecimal() or len(asked) > 9 or given >= int(asked)
    text += "" if is_given else f"; a task has {given} of the {asked} cores that it asked for"
    remedy = "From SLURM 22.05 on srun needs --cpus-per-task itself; the scripts in slurm/ pass it."
    return [verdict_on("slurm", is_given, text, remedy)]


def _outside() -> str:
    sinfo = shutil.which("sinfo")
    if sinfo is None:
        return "absent (optional: slurm/ needs it)"
    command = [sinfo, "--noheader", "--format=%P %D %T"]
    try:
        shown = subprocess.run(command, capture_output=True, text=True, timeout=15, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return f"sinfo does not answer ({type(error).__name__})"
    if shown.returncode:
        return f"sinfo is here but reaches no controller: {(shown.stderr.strip().splitlines() or ['?'])[-1]}"
    return "login node; partitions, nodes, state: " + "; ".join(shown.stdout.split("\n")[:8]).strip("; ")
