"""Ranks whose nodes hold different shards or packages: a node may have copies of its own."""

from types import SimpleNamespace

import pytest
from several_ranks.worker_group import WorkerError

from megabert.data.mixture import Mixture
from megabert.training.pretrain import _require_same_inputs

SAME = (None, None)


def look(world, own: list[tuple[tuple[str, ...], ...]], packages=SAME, precisions=SAME):
    shards = [SimpleNamespace(train=Mixture((SimpleNamespace(place=name),))) for name in ("data/128", "data/512")]
    package, precision = packages[world.rank], precisions[world.rank]
    config = SimpleNamespace(optimizer=SimpleNamespace(package=package), precision=precision)
    _require_same_inputs(SimpleNamespace(data_sha256=own[world.rank], shards=shards, config=config), world)


def test_ranks_that_see_different_shards_are_told_which(workers):
    workers(2).run(look, [(("a",), ("b",)), (("a",), ("b",))])
    message = r"data/512: rank 1 sees other shards there than rank 0 \(SHA-256 c and b\)"
    with pytest.raises(WorkerError, match=message):
        workers(2).run(look, [(("a",), ("b",)), (("a",), ("c",))])


@pytest.mark.parametrize(
    ("packages", "precisions", "message"),
    [
        (("pkg 0.1", "pkg 0.2"), SAME, r"nodes have pkg 0\.1 and pkg 0\.2\. Install one version on all of them"),
        (SAME, ("fp16", "bf16"), r"precision: nodes have bf16 and fp16\. .* --precision fp16"),
    ],
)
def test_ranks_with_another_package_or_precision_are_told(packages, precisions, message, workers):
    with pytest.raises(WorkerError, match=message):
        workers(2).run(look, [(("a",), ("b",)), (("a",), ("b",))], packages, precisions)
