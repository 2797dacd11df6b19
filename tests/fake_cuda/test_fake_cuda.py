"""Runs each ``steps_*.py`` in a fork of a process whose torch believes that it has a GPU: it loads guard.cpp.

Forks of one process: importing torch and the trainer takes 4 CPU seconds, as much as ten steps.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_cuda.guard import build_guard, why_not_here
from forked.client import ForkServer, request_of

FILES = sorted(Path(__file__).parent.glob("steps_*.py"))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory) -> Iterator[tuple[ForkServer, dict[str, str]]]:
    """Build the library; return a process that has loaded it, and the environment of what it runs."""
    reason = why_not_here()
    if reason:
        pytest.skip(reason)
    preloaded = {"LD_PRELOAD": str(build_guard(tmp_path_factory.mktemp("guard")))}
    server = ForkServer("pytest", "megabert.training.step", **preloaded)
    yield server, {**os.environ, **preloaded}
    server.close()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("file", FILES, ids=lambda path: path.stem.removeprefix("steps_"))
def test_steps_on_a_gpu_that_is_not_there_keep_their_bounds(file, guarded, tmp_path):
    server, environment = guarded
    output, words = tmp_path / "output", ["-q", "--no-header", "-p", "no:cacheprovider", str(file)]
    environment = {**environment, "TRITON_CACHE_DIR": str(tmp_path)}
    wishes = {"environment": environment, "stdout": output, "stderr": output, "timeout_s": 580}
    (reply,) = server.ask([request_of("pytest", words, tmp_path / "modules", **wishes)])
    assert (reply["code"], reply["ended"]) == (0, ""), output.read_text()[-8000:]
    assert " passed" in output.read_text()
