"""A SLURM cluster of two virtual nodes on this machine, from Debian's packages, for the scripts in ``slurm/``."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "slurm-cluster"
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "ip")


@pytest.fixture(scope="session")
def cluster() -> Iterator[dict[str, str]]:
    """Start the cluster and return the environment that reaches it."""
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    missing = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    if os.geteuid() != 0 or missing:
        why = f"missing: {', '.join(missing)}" if missing else "root is needed"
        pytest.skip(f"no SLURM cluster for slurm/ ({why}). On Debian, as root: tests/tools/slurm-cluster install")
    folder = tempfile.mkdtemp(prefix="megabert-slurm-", dir="/tmp")  # sockets: paths of at most 107 characters
    environment = {**os.environ, "PATH": path, "SLURM_TEST_DIR": folder, "SLURM_TEST_CONF_EXTRA": "KillWait=20"}
    started = subprocess.run(
        [str(TOOL), "start", "2"], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    try:
        if "namespaces or network devices cannot be made here" in started.stderr:
            pytest.skip(f"no SLURM cluster for slurm/: {started.stderr.strip().splitlines()[-1]}")
        assert started.returncode == 0, started.stderr[-4000:]
        yield {**environment, "SLURM_CONF": f"{folder}/slurm.conf"}
    finally:
        subprocess.run([str(TOOL), "stop"], env=environment, capture_output=True, timeout=120, check=False)
        shutil.rmtree(folder, ignore_errors=True)
