"""The cluster on which the scripts in ``slurm/`` run."""

from collections.abc import Iterator

import pytest
from integration.slurm.clusters import started


@pytest.fixture(scope="session")
def cluster() -> Iterator[dict[str, str]]:
    """Start a cluster and return the environment that reaches it."""
    with started() as environment:
        yield environment
