"""Runs kernels in Triton's interpreter, in a process of its own: TRITON_INTERPRET is read when one is decorated."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

FOLDER = Path(__file__).parent / "interpreted"


@pytest.mark.timeout(600)
def test_kernels_match_their_references_in_the_interpreter(tmp_path):
    files = sorted(FOLDER.glob("kernels_*.py"))
    assert len(files) >= 7
    environment = os.environ | {"TRITON_INTERPRET": "1", "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "--durations=5", *map(str, files)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=580, check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
