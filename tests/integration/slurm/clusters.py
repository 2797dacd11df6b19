"""SLURM clusters of two virtual nodes on this machine, from Debian's packages (``tests/tools/slurm-cluster``)."""

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "slurm-cluster"
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


def new_folder() -> str:
    """Return an empty folder; the path of a socket in it may have 107 characters."""
    return tempfile.mkdtemp(prefix="megabert-slurm-", dir="/tmp")


@contextlib.contextmanager
def started(*folders: str) -> Iterator[list[dict[str, str]]]:
    """Start a cluster in each folder, all at the same moment, and yield the environments that reach them."""
    common = tool_environment()
    environments = [{**common, "SLURM_TEST_DIR": folder, "SLURM_CONF": f"{folder}/slurm.conf"} for folder in folders]
    starts = [
        subprocess.Popen(
            [TOOL, "start", "2"], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        for environment in environments
    ]
    try:
        shown = [start.communicate(timeout=240)[1] for start in starts]
        if any(start.returncode == NOT_ALLOWED for start in starts):
            pytest.skip(f"no SLURM cluster for slurm/: {shown}")
        assert [start.returncode for start in starts] == [0] * len(starts), "\n".join(text[-4000:] for text in shown)
        yield environments
    finally:
        for start, environment in zip(starts, environments, strict=True):
            start.kill()
            subprocess.run([TOOL, "stop"], env=environment, capture_output=True, timeout=120, check=False)
            shutil.rmtree(environment["SLURM_TEST_DIR"], ignore_errors=True)
