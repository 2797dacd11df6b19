"""Runs all ``steps_*.py`` in a process whose torch believes that it has a GPU: it loads guard.cpp, which is built here.

One process for all: importing torch and the first step take 4 CPU seconds, as much as ten further steps.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake_cuda.guard import build_guard, why_not_here

FOLDER = Path(__file__).parent


@pytest.fixture(scope="module")
def guard(tmp_path_factory) -> Path:
    """Build the library."""
    reason = why_not_here()
    if reason:
        pytest.skip(reason)
    return build_guard(tmp_path_factory.mktemp("guard"))


@pytest.mark.timeout(600)
def test_steps_on_a_gpu_that_is_not_there_keep_their_bounds(guard, tmp_path):
    environment = os.environ | {"LD_PRELOAD": str(guard), "TRITON_CACHE_DIR": str(tmp_path)}
    steps = map(str, sorted(FOLDER.glob("steps_*.py")))
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "--durations=5", *steps]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=580, check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
