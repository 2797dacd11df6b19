from pathlib import Path

import pytest
from several_ranks.worker_group import WorkerGroups
from soak.soak_table import SoakTable
from support.bundled_corpus import build_shards, small_corpus


@pytest.fixture(scope="module")
def workers():
    """``workers(2).run(function, ...)`` runs ``function(world, ...)`` on two ranks that stay up for the module."""
    groups = WorkerGroups()
    yield groups
    groups.close()


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> Path:
    """A finished build of the bundled corpus's small part."""
    folder = tmp_path_factory.mktemp("data")
    return build_shards(small_corpus(folder), folder / "shards")


@pytest.fixture(scope="module")
def table(request) -> SoakTable:
    """The file of figures of a module that has a ``TITLE`` and ``COLUMNS``."""
    name = request.module.__name__.rpartition(".")[2].removeprefix("test_")
    return SoakTable(name, request.module.TITLE, request.module.COLUMNS)
