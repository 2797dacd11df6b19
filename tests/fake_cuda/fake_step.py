"""Pre-training on a device that is not there: optimizer steps, and validations."""

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import torch.distributed as dist
from fake_cuda.fake_gpu import FAMILIES, SIZES, fake_engine, fake_gpu, ops_of
from fake_cuda.watch import Seen, Watch
from torch.testing._internal.distributed.fake_pg import FakeStore

from megabert.data.batch import probe_batch
from megabert.data.mixture import Mixture
from megabert.data.step_packer import StepBatch
from megabert.models.build import build_model
from megabert.optim import StepSettings
from megabert.settings.config.model import ModelConfig
from megabert.training import step

MICRO_STEPS = 2
VALIDATION_BATCHES = 3


def steps(
    *,
    family: str = "bert",
    world_size: int = 1,
    number: int = 2,
    tokens: int = 1024,
    in_fp8: bool = False,
    **of_engine: Any,
) -> tuple[list[Seen], Any]:
    """Make some steps; return what was seen in each, and the engine's fragments."""
    watch, seen = Watch(), []
    with fake_gpu(watch, world_size):
        engine, world = _engine_of(family, in_fp8=in_fp8, world_size=world_size, **of_engine)
        for _ in range(number):
            watch.seen = Seen()
            with watch:
                step_on(engine, world, tokens=tokens)
            seen.append(watch.seen)
        return seen, engine.fragments


def peak_bytes(sizes: dict[str, Any], *, tokens: int, length: int) -> int:
    """Return the most bytes that the device holds in a step of a model of these sizes, ZeRO-1, two ranks."""
    watch = Watch()
    with fake_gpu(watch, 2), watch:
        config = ModelConfig(**sizes)
        engine, world = fake_engine(lambda: build_model(config, ops=ops_of(config.family)), world_size=2)
        step_on(engine, world, tokens=tokens, length=length)
    return watch.memory.peak


def step_of_many_ranks(sizes: dict[str, Any], *, stage: int, world_size: int) -> tuple[Seen, int, int]:
    """Make a second step on rank 0 of many; return what was seen, the bytes held after it, and the parameters.

    The collectives are called on torch's fake process group, which checks shapes and sends nothing.
    """
    watch = Watch()
    with fake_process_group(world_size), fake_gpu(watch, world_size), watch:
        config = ModelConfig(**sizes)
        engine, world = fake_engine(
            lambda: build_model(config, ops=ops_of(config.family)), stage=stage, world_size=world_size
        )
        for _ in range(2):
            watch.seen = Seen()
            step_on(engine, world, tokens=128)
        return watch.seen, watch.memory.live, sum(parameter.numel() for parameter in engine.module.parameters())


@contextlib.contextmanager
def fake_process_group(world_size: int) -> Iterator[None]:
    """Be rank 0 of a world whose other ranks do not exist."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world_size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def validations(*, family: str = "bert", world_size: int = 1, number: int = 2) -> list[Seen]:
    """Validate some times, each time after a step, whose weights are still on their way; return what was seen."""
    watch, seen = Watch(), []
    batches = mock.patch.object(step, "validation_batches", return_value=_micro_batches(VALIDATION_BATCHES))
    with fake_gpu(watch, world_size), batches, watch:
        engine, world = _engine_of(family, world_size=world_size)
        for _ in range(number):
            step_on(engine, world)
            watch.seen = Seen()
            step.validate(engine, Mixture((mock.Mock(num_rows=1),)), shape=None, max_instances=1, world=world)
            seen.append(watch.seen)
        return seen


def _engine_of(family: str, *, in_fp8: bool = False, **options: Any) -> tuple[Any, Any]:
    config = ModelConfig(family=family, **SIZES, **FAMILIES[family])
    return fake_engine(lambda: build_model(config, in_fp8=in_fp8, ops=ops_of(family)), **options)


def step_on(engine: Any, world: Any, *, micro_steps: int = MICRO_STEPS, **sizes: int) -> None:
    """Make one step on full micro-batches."""
    batch = StepBatch(
        number=1,
        micro_batches=_micro_batches(micro_steps, **sizes),
        num_masked=300,
        lengths=np.full(16, 128, np.uint16),
        ranges={},
        positions_after={},
    )
    sums = step.accumulate(engine, batch, world)
    step.update(engine, batch, sums, StepSettings(lr=1e-3), world)


def _micro_batches(number: int, *, tokens: int = 1024, length: int = 128) -> list[Any]:
    return [probe_batch(tokens=tokens, length=length) for _ in range(number)]
