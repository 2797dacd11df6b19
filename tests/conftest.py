"""Every test starts from the same global seed, so that a failure repeats; long runs of tests go on where they ended."""

import os
from pathlib import Path

# One thread a process, set before torch is imported: test files run side by side, and waiting OpenMP threads spin.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from progress import Progress


@pytest.fixture(autouse=True)
def same_global_seed() -> None:
    torch.manual_seed(1810)


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "leave out the tests that FILE lists as passed by this very code, and list there those that pass"
    parser.addoption("--progress", metavar="FILE", type=Path, help=text)


def pytest_configure(config: pytest.Config) -> None:
    if file := config.getoption("--progress"):
        config.pluginmanager.register(Progress(file))
