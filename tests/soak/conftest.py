import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "distributed"))  # worker_group, soak_table, toy_training

from worker_group import WorkerGroups


@pytest.fixture(scope="module")
def workers():
    """``workers(2).run(function, ...)`` runs ``function(world, ...)`` on two ranks that stay up for the module."""
    groups = WorkerGroups()
    yield groups
    groups.close()
