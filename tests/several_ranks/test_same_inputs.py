"""Ranks whose nodes hold different shards or packages: a node may have copies of its own."""

from types import SimpleNamespace

import pytest
from several_ranks.worker_group import WorkerError

from megabert.data.mixture import Mixture
from megabert.training.pretrain import _require_same_inputs


def look(world, own: list[tuple[tuple[str, ...], ...]], packages: tuple[str | None, ...] = (None, None)):
    shards = [(Mixture((SimpleNamespace(place=name),)), None) for name in ("data/128", "data/512")]
    config = SimpleNamespace(optimizer=SimpleNamespace(package=packages[world.rank]))
    _require_same_inputs(SimpleNamespace(data_sha256=own[world.rank], shards=shards, config=config), world)


def test_ranks_that_see_different_shards_are_told_which(workers):
    workers(2).run(look, [(("a",), ("b",)), (("a",), ("b",))])
    message = r"data/512: rank 1 sees other shards there than rank 0 \(SHA-256 c and b\)"
    with pytest.raises(WorkerError, match=message):
        workers(2).run(look, [(("a",), ("b",)), (("a",), ("c",))])


def test_ranks_with_another_version_of_a_package_are_told(workers):
    with pytest.raises(WorkerError, match=r"nodes have pkg 0\.1 and pkg 0\.2\. Install one version on all of them"):
        workers(2).run(look, [(("a",), ("b",)), (("a",), ("b",))], ("pkg 0.1", "pkg 0.2"))
