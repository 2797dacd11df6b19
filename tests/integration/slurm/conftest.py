"""The cluster on which the scripts in ``slurm/`` run."""

from collections.abc import Iterator

import pytest
from integration.slurm.clusters import new_folder, started


@pytest.fixture(scope="session")
def cluster() -> Iterator[dict[str, str]]:
    """Start a cluster and return the environment that reaches it."""
    with started(new_folder()) as (environment,):
        yield environment
