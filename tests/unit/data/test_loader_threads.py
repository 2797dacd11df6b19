"""The loader's thread: agreement over ranks, failures, closing, and how far it works ahead."""

import threading
import time

import pytest
from unit.data.streams import loader_of

from megabert.data.loader import StepTotals
from megabert.foundation.errors import DataError, Echo
from megabert.tokens.shards.shard_set import ShardSet


class Agreement:
    """A meeting of threads in place of gloo."""

    def __init__(self, world_size):
        self.barrier = threading.Barrier(world_size, timeout=20)
        self.slots = [None] * world_size
        self.calls = [0] * world_size

    def of(self, rank):
        def agree(mine):
            self.calls[rank] += 1
            self.slots[rank] = mine
            self.barrier.wait()
            masked, instances, micro_steps, stop = zip(*self.slots, strict=True)
            self.barrier.wait()
            return StepTotals(sum(masked), sum(instances), max(micro_steps), max(stop))

        return agree


def test_ranks_agree_once_a_step_on_totals_and_stop(shards):
    agreement = Agreement(2)
    loaders = [loader_of(shards, world_size=2, rank=r, agree=agreement.of(r), num_steps=None) for r in range(2)]
    assert not any(next(loader).stop for loader in loaders)
    loaders[1].request_stop()
    stops = []
    while not stops or not stops[-1][0]:
        stops.append([next(loader).stop for loader in loaders])
    assert all(a == b for a, b in stops)
    assert len(stops) <= 2  # the step that was made already, then the step that says so
    for loader in loaders:
        loader.close()
        assert not loader._thread.is_alive()
    assert agreement.calls[0] == agreement.calls[1] == len(stops) + 2


def test_failure_on_one_rank_reaches_the_others(shards, shard_folder, monkeypatch):
    agreement = Agreement(2)
    broken = ShardSet.open(shard_folder)
    monkeypatch.setattr(broken, "rows", lambda *_: (_ for _ in ()).throw(DataError("rank 1's disk is gone")))
    loaders = [loader_of(s, world_size=2, rank=r, agree=agreement.of(r)) for r, s in enumerate([shards, broken])]
    with pytest.raises(Echo, match="another rank"):
        next(loaders[0])
    for _ in range(2):
        with pytest.raises(DataError, match="disk is gone"):
            next(loaders[1])
    for loader in loaders:
        loader.close()


def test_ranks_with_different_shards_are_refused(make, shards, tmp_path):
    other = ShardSet.open(make.shards(tmp_path / "other", {"train": [make.instances(1111, 32, 1000, seed=9)]}))
    agreement = Agreement(2)
    loaders = [loader_of(s, world_size=2, rank=r, agree=agreement.of(r)) for r, s in enumerate([shards, other])]
    for loader in loaders:
        with pytest.raises(DataError, match="different shards"):
            next(loader)
        loader.close()


def test_closing_twice_leaves_no_thread(shards):
    loader = loader_of(shards, num_steps=None)
    next(loader)
    loader.close()
    loader.close()
    assert not loader._thread.is_alive()
    with pytest.raises(StopIteration):
        next(loader)


def test_closing_wakes_a_waiting_consumer(shards):
    agreement = threading.Event()
    loader = loader_of(shards, num_steps=None, agree=lambda vector: (agreement.wait(20), vector)[1])
    seen = []
    consumer = threading.Thread(target=lambda: seen.extend(loader))
    consumer.start()
    closer = threading.Thread(target=loader.close)
    closer.start()
    agreement.set()
    closer.join(5)
    consumer.join(5)
    assert not consumer.is_alive()
    assert not closer.is_alive()


def test_thread_makes_no_more_than_one_step_ahead(shards):
    calls = []
    with loader_of(shards, num_steps=None, agree=lambda vector: (calls.append(1), vector)[1]) as loader:
        for consumed in range(1, 4):
            next(loader)
            for _ in range(2000):  # 20 s for a busy machine
                if len(calls) > consumed:
                    break
                time.sleep(0.01)
            time.sleep(0.05)  # and no further step is made
            assert len(calls) == consumed + 1
