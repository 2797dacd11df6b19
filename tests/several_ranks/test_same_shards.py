"""Ranks whose folders hold different shards: a node may have a copy of its own."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from several_ranks.worker_group import WorkerError

from megabert.data.mixture import Mixture
from megabert.training.pretrain import _require_same_shards


def look(world, own: list[tuple[tuple[str, ...], ...]]):
    shards = [(Mixture((SimpleNamespace(folder=Path(name)),)), None) for name in ("data/128", "data/512")]
    _require_same_shards(SimpleNamespace(data_sha256=own[world.rank], shards=shards), world)


def test_ranks_that_see_different_shards_are_told_which(workers):
    workers(2).run(look, [(("a",), ("b",)), (("a",), ("b",))])
    message = r"data/512: rank 1 sees other shards there than rank 0 \(SHA-256 c and b\)"
    with pytest.raises(WorkerError, match=message):
        workers(2).run(look, [(("a",), ("b",)), (("a",), ("c",))])
