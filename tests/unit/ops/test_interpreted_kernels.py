"""Runs kernels in Triton's interpreter, in forks of a process with TRITON_INTERPRET: kernels read it when made."""

from pathlib import Path

import pytest
from forked.client import ForkServer, environment_of_commands, run_tests

pytest.importorskip("triton")

FILES = sorted((Path(__file__).parent / "interpreted").glob("kernels_*.py"))
INTERPRETING = {"TRITON_INTERPRET": "1"}


@pytest.fixture(scope="module")
def server():
    """Return a process of this worker that has imported pytest and kernels to interpret."""
    server = ForkServer("pytest", "megabert.ops.proof.problems", **INTERPRETING)
    yield server
    server.close()


EACH_FILE = pytest.mark.parametrize("file", FILES, ids=lambda path: path.stem.removeprefix("kernels_"))
pytestmark = pytest.mark.timeout(1200)


@EACH_FILE
def test_kernels_match_their_references_in_the_interpreter(file, server, tmp_path):
    run_tests(server, file, tmp_path, environment_of_commands() | INTERPRETING | {"TRITON_CACHE_DIR": str(tmp_path)})


@pytest.mark.soak
@EACH_FILE
def test_kernels_of_every_shape_and_dtype_match_their_references(file, server, tmp_path):
    environment = environment_of_commands() | INTERPRETING | {"TRITON_CACHE_DIR": str(tmp_path)}
    run_tests(server, file, tmp_path, environment, "-m", "")
