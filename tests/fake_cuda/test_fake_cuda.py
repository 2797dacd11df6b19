"""Runs all ``steps_*.py`` in a process whose torch believes that it has a GPU: it loads guard.cpp, which is built here.

One process for all: importing torch and the first step take 4 CPU seconds, as much as ten further steps.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent


@pytest.fixture(scope="module")
def guard(tmp_path_factory) -> Path:
    """Build the library."""
    compiler = shutil.which("g++")
    if compiler is None or importlib.util.find_spec("triton") is None:
        pytest.skip("steps on a GPU that is not there need g++ and Triton: apt-get install g++; pip install triton")
    import torch

    if torch.version.cuda or torch.version.hip:
        pytest.skip("this build of torch has a guard of its own for GPUs: install the one for CPUs")
    folder, library = Path(torch.__file__).parent, tmp_path_factory.mktemp("guard") / "guard.so"
    command = [compiler, "-std=c++20", "-O1", "-shared", "-fPIC", str(FOLDER / "guard.cpp"), "-o", str(library)]
    command += [f"-I{folder}/include", f"-L{folder}/lib", "-lc10", "-ltorch_cpu", f"-Wl,-rpath,{folder}/lib"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return library


@pytest.mark.timeout(600)
def test_steps_on_a_gpu_that_is_not_there_keep_their_bounds(guard, tmp_path):
    environment = os.environ | {"LD_PRELOAD": str(guard), "TRITON_CACHE_DIR": str(tmp_path)}
    steps = map(str, sorted(FOLDER.glob("steps_*.py")))
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "--durations=5", *steps]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=580, check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
