"""One process that runs commands, and the sound material that cases damage."""

from pathlib import Path

import pytest
from bad_input.harness import CommandServer
from bad_input.material import make_material


@pytest.fixture(scope="session")
def server() -> CommandServer:
    return CommandServer()


@pytest.fixture(scope="session")
def material(server, tmp_path_factory) -> Path:
    return make_material(tmp_path_factory.mktemp("material"), server)
