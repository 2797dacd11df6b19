"""Runs each ``steps_*.py`` in a fork of a process whose torch believes that it has a GPU: it loads guard.cpp.

Forks of one process: importing torch and the trainer takes 4 CPU seconds, as much as ten steps.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_cuda.guard import build_guard, why_not_here
from forked.client import ForkServer, run_tests

FILES = sorted(Path(__file__).parent.glob("steps_*.py"))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory) -> Iterator[tuple[ForkServer, dict[str, str]]]:
    """Build the library; return a process that has loaded it, and the environment of what it runs."""
    reason = why_not_here()
    if reason:
        pytest.skip(reason)
    preloaded = {"LD_PRELOAD": str(build_guard(tmp_path_factory.mktemp("guard")))}
    server = ForkServer("pytest", "fake_cuda.fake_finetuning", "fake_cuda.fake_step", "torch._dynamo", **preloaded)
    yield server, {**os.environ, **preloaded}
    server.close()


EACH_FILE = pytest.mark.parametrize("file", FILES, ids=lambda path: path.stem.removeprefix("steps_"))
pytestmark = pytest.mark.timeout(1200)


@EACH_FILE
def test_steps_on_a_gpu_that_is_not_there_keep_their_bounds(file, guarded, tmp_path):
    server, environment = guarded
    run_tests(server, file, tmp_path, {**environment, "TRITON_CACHE_DIR": str(tmp_path)})


@pytest.mark.soak
@EACH_FILE
def test_steps_of_every_family_keep_their_bounds(file, guarded, tmp_path):
    server, environment = guarded
    run_tests(server, file, tmp_path, {**environment, "TRITON_CACHE_DIR": str(tmp_path)}, "-m", "")
