"""Every kernel, wrong in one place after another, is found by the first run's problems: ``kernel_mutants.py``."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).parent
pytestmark = [pytest.mark.soak, pytest.mark.timeout(0)]


def test_every_wrong_kernel_is_found_or_named_equivalent():
    pytest.importorskip("triton", reason="pip install 'triton>=3.6'")
    command = [sys.executable, str(SOAK / "kernel_mutants.py")]
    environment = {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOAK.parent)}
    assert subprocess.run(command, env=os.environ | environment).returncode == 0
