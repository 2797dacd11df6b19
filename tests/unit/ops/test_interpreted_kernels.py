"""Runs kernels in Triton's interpreter, in forks of a process with TRITON_INTERPRET: kernels read it when made."""

from pathlib import Path

import pytest
from forked.client import ForkServer, environment_of_commands, request_of

pytest.importorskip("triton", reason="pip install 'triton>=3.6'")

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


def run(file: Path, server: ForkServer, folder: Path, *more: str) -> None:
    """Run the tests of a file in a fork."""
    environment = environment_of_commands() | INTERPRETING | {"TRITON_CACHE_DIR": str(folder)}
    output, words = folder / "output", ["-q", "--no-header", "-p", "no:cacheprovider", str(file), *more]
    wishes = {"environment": environment, "stdout": output, "stderr": output, "timeout_s": 1180}
    (reply,) = server.ask([request_of("pytest", words, folder / "modules", **wishes)])
    assert (reply["code"], reply["ended"]) == (0, ""), output.read_text()[-8000:]
    assert " passed" in output.read_text()


@EACH_FILE
def test_kernels_match_their_references_in_the_interpreter(file, server, tmp_path):
    run(file, server, tmp_path)


@pytest.mark.soak
@EACH_FILE
def test_kernels_of_every_shape_and_dtype_match_their_references(file, server, tmp_path):
    run(file, server, tmp_path, "-m", "")
