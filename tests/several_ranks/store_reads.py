"""Ranks that are threads meet over gloo and print how many addresses they read: ``store_reads.py RANKS WORLD``.

The second number is the size of the world whose way of connecting is taken.
"""

import sys
import threading
from datetime import timedelta

import torch
import torch.distributed as dist

from megabert.distributed.process_group import prepare_gloo


class CountingStore(dist.Store):
    """A store in this process that counts the values that are read."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.reads, self.lock = dist.HashStore(), 0, threading.Lock()

    def set(self, key, value):
        self.inner.set(key, value)

    def get(self, key):
        with self.lock:
            self.reads += 1
        return self.inner.get(key)

    def add(self, key, value):
        return self.inner.add(key, value)

    def wait(self, keys, timeout=timedelta(seconds=60)):
        return self.inner.wait(keys, timeout)

    def check(self, keys):
        return self.inner.check(keys)


def meet(ranks: int) -> int:
    """Make a group, use what a run uses, and return the reads of all ranks."""
    store, sums = CountingStore(), [0.0] * ranks

    def rank_of(rank: int) -> None:
        group = dist.ProcessGroupGloo(store, rank, ranks, timedelta(seconds=60))
        values = torch.ones(10)
        group.allreduce([values]).wait()
        sums[rank] = float(values[0])
        group.allgather([[torch.zeros(10) for _ in range(ranks)]], [values]).wait()
        group.broadcast([values]).wait()
        group.barrier().wait()

    threads = [threading.Thread(target=rank_of, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sums == [float(ranks)] * ranks
    return store.reads


if __name__ == "__main__":
    prepare_gloo(int(sys.argv[2]))
    print(meet(int(sys.argv[1])))
