"""A SLURM cluster of two virtual nodes on this machine, from Debian's packages (``tests/tools/slurm-cluster``)."""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TOOL = ROOT / "tests" / "tools" / "slurm-cluster"
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "ip")
NOT_ALLOWED = 77
"""The tool's exit code if the machine refuses namespaces. After any other failure tests fail: they could have run."""


def tool_environment() -> dict[str, str]:
    """Return the environment for the tool; skip on a machine without SLURM."""
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    missing = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    if os.geteuid() != 0 or missing:
        why = f"missing: {', '.join(missing)}" if missing else "root is needed"
        pytest.skip(f"no SLURM cluster for slurm/ ({why}). On Debian, as root: tests/tools/slurm-cluster install")
    return {**os.environ, "PATH": path, "SLURM_TEST_CONF_EXTRA": "KillWait=20"}


def virtualenv(folder: Path) -> Path:
    """Return a folder whose ``bin/megabert`` and ``bin/megabert-data`` are this checkout under this interpreter."""
    (programs := folder / "venv" / "bin").mkdir(parents=True, exist_ok=True)
    for name, module in (("megabert", "megabert"), ("megabert-data", "data_prep")):
        if not (program := programs / name).exists():  # a rank may be reading it
            program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m {module} "$@"\n')
            program.chmod(0o755)
    return programs.parent


@contextlib.contextmanager
def started() -> Iterator[dict[str, str]]:
    """Start a cluster and yield the environment that reaches it."""
    common = tool_environment()
    folder = tempfile.mkdtemp(prefix="megabert-slurm-", dir="/tmp")  # a socket's path may have 107 characters
    environment = {**common, "SLURM_TEST_DIR": folder, "SLURM_CONF": f"{folder}/slurm.conf"}
    try:
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}  # daemons keep the first one open
        done = subprocess.run([TOOL, "start", "2"], env=environment, text=True, timeout=240, **quiet)
        if done.returncode == NOT_ALLOWED:
            pytest.skip(f"no SLURM cluster for slurm/: {done.stderr}")
        assert done.returncode == 0, done.stderr[-4000:]
        yield environment
    finally:
        subprocess.run([TOOL, "stop"], env=environment, capture_output=True, timeout=120, check=False)
        shutil.rmtree(folder, ignore_errors=True)
