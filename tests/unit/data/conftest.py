import pytest

from megabert.tokens.shards.shard_set import ShardSet


@pytest.fixture
def shards(shard_folder):
    return ShardSet.open(shard_folder)
