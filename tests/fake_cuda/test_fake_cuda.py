"""Runs the ``steps_*.py`` in a process whose torch believes that it has a GPU: it loads guard.cpp.

One process for all of them: importing torch, the trainer and what fake tensors need takes as much as ten steps.
"""

import subprocess
import sys
from pathlib import Path

import pytest
from fake_cuda.guard import build_guard, why_not_here
from forked.client import environment_of_commands
from support.soak import in_soak

FILES = sorted(Path(__file__).parent.glob("steps_*.py"))


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("more", [[], *in_soak(["-m", ""])], ids=["few families", "every family"])
def test_steps_on_a_gpu_that_is_not_there_keep_their_bounds(more, tmp_path):
    if reason := why_not_here():
        pytest.skip(reason)
    own = {"LD_PRELOAD": str(build_guard(tmp_path)), "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider", *map(str, FILES), *more]
    done = subprocess.run(command, env=environment_of_commands() | own, capture_output=True, text=True, timeout=1780)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
