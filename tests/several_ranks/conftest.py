import pytest
from several_ranks.worker_group import WorkerGroups


@pytest.fixture(scope="session")
def workers():
    """``workers(2).run(function, ...)`` runs ``function(world, ...)`` on two ranks that stay up for the session."""
    groups = WorkerGroups()
    yield groups
    groups.close()
