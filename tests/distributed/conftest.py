import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # worker_group, toy_training

from worker_group import WorkerGroups


@pytest.fixture(scope="session")
def workers():
    """``workers(2).run(function, ...)`` runs ``function(world, ...)`` on two ranks that stay up for the session."""
    groups = WorkerGroups()
    yield groups
    groups.close()
