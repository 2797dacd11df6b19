import shutil

import pytest
from support.made_shards import make_metadata

from megabert.tokens.shards.format import ShardMetadata


@pytest.fixture
def metadata() -> ShardMetadata:
    return make_metadata(max_seq_length=128, max_predictions_per_seq=20, seed=7, vocab_size=65_536)


@pytest.fixture
def copied(shard_folder, tmp_path):
    """A copy of the shards that a test may damage."""
    return shutil.copytree(shard_folder, tmp_path / "copy")
