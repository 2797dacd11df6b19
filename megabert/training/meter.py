"""Throughput of the training steps, between two log lines."""

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import numpy as np
import torch

from megabert.data.step_packer import StepBatch
from megabert.distributed.process_group import World
from megabert.observability.flops import local_pairs, peak_flops, training_flops
from megabert.ops.backend import compiled_kernels
from megabert.settings.config.run import RunConfig


class Meter:
    """Throughput, data wait, MFU and memory since the last reading."""

    def __init__(self, config: RunConfig, world: World) -> None:
        """Look up the device's peak FLOP/s, which MFU is a share of."""
        self._config, self._world = config, world
        name = torch.cuda.get_device_name() if world.device.type == "cuda" else "cpu"
        self._peak = peak_flops(name, config.precision)
        self.restart()

    def restart(self) -> None:
        """Count from zero again: after a reading, and in a new phase, which has other lengths."""
        self._started = time.perf_counter()
        self._flops = 0.0
        self._seconds = {"data": 0.0, "computing": 0.0, "pause": 0.0}
        self._instances = self._tokens = self._steps = 0
        self._compiled = len(compiled_kernels())
        if self._world.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()

    @contextmanager
    def timing(self, what: Literal["data", "computing", "pause"]) -> Iterator[None]:
        """Count the time inside.

        Args:
            what: ``data``, waiting for the loader; ``computing``, this rank's own part of a step, after which it waits
                for the others; or ``pause``, a validation or a checkpoint, which the rates leave out.
        """
        started = time.perf_counter()
        yield
        self._seconds[what] += time.perf_counter() - started

    def count(self, batch: StepBatch) -> None:
        """Count a global batch."""
        self._steps += 1
        self._instances += batch.num_instances
        self._tokens += batch.num_tokens
        lengths, model = batch.lengths.astype(np.int64), self._config.model
        self._flops += training_flops(
            model,
            tokens=batch.num_tokens,
            squared_lengths=int(lengths @ lengths),
            masked=batch.num_masked,
            local_pairs=local_pairs(model, lengths),
        )

    def read(self) -> dict[str, float]:
        """Return ``perf/*`` over all ranks, the peak memory of this one, and restart; every rank calls it."""
        # Each rank's own computing time: where one is slower than the others, they all wait for it in every step.
        seconds = time.perf_counter() - self._started - self._seconds["pause"]
        busy = self._world.gather(self._seconds["computing"])  # waits for all ranks, once per logged step
        if self._world.device.type == "cuda":
            memory = torch.cuda.max_memory_allocated() / 2**30  # bytes to GiB
        else:
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # Linux counts in KiB
        steps = max(1, self._steps)
        values = {
            "perf/step_s": seconds / steps,
            "perf/compute_s": max(busy) / steps,
            "perf/sequences_per_s": self._instances / seconds,
            "perf/tokens_per_s": self._tokens / seconds,
            "perf/data_wait_pct": 100 * self._seconds["data"] / seconds,
            "perf/step_time_spread_pct": 100 * (max(busy) - min(busy)) / max(max(busy), 1e-9),
            "perf/slowest_rank": busy.index(max(busy)),
            "perf/compiled_kernels": len(compiled_kernels()) - self._compiled,
            "memory/max_allocated_gib": memory,
        }
        if self._peak is not None:
            values["perf/mfu_pct"] = 100 * self._flops / seconds / (self._peak * self._world.size)
        self.restart()
        return values
