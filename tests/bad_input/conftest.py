"""One process that runs commands, and the sound material that cases damage."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from bad_input.harness import CommandServer, Tally
from bad_input.material import make_material


@pytest.fixture(scope="session")
def server() -> CommandServer:
    return CommandServer()


@pytest.fixture(scope="session")
def material(server, tmp_path_factory) -> Path:
    return make_material(tmp_path_factory.mktemp("material"), server)


@pytest.fixture(scope="session")
def tally() -> Iterator[Tally]:
    """What came of the rows, by command; shown at the end of a long run (``pytest -s``)."""
    tally = Tally()
    yield tally
    print(f"\n{tally}")
