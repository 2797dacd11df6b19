"""``python -m integration.programs.faults NAME pretrain ...``: megabert in which something goes wrong.

Each function below is a fault, called in the place of the function that it gets first. ``NAME+NAME`` is two of them.
Faults of data find their instances by the place in epoch 0, so that a run that leaves these instances out is cured.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from megabert.cli import main
from megabert.foundation.errors import DataError
from megabert.observability.profiler import StepProfiler
from megabert.training import trainer
from megabert.training.recovery import watchdog
from megabert.training.run import checkpoint_writer

NAN = float("nan")
FAULTS: dict[str, tuple[Any, str, Callable[..., Any]]] = {}
"""Owner and name of the function that a fault replaces, and the fault."""


def in_place_of(name: str, owner: Any = trainer) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a fault."""

    def register(fault: Callable[..., Any]) -> Callable[..., Any]:
        FAULTS[fault.__name__] = owner, name, fault
        return fault

    return register


def stop_of(batch):
    """Return the end of a batch's range of instances."""
    return max(part.stop for parts in batch.ranges.values() for part in parts)


@in_place_of("accumulate")
def tear_a_shard(accumulate, engine, batch, world):
    """Rank FAILING_RANK fails in step 6."""
    if batch.number == 5 and world.rank == int(os.environ["FAILING_RANK"]):  # counts from 0
        raise DataError("a torn shard")
    return accumulate(engine, batch, world)


@in_place_of("write_snapshot", checkpoint_writer)
def write_slowly(write_snapshot, folder, snapshot, world):
    """Every rank's writer takes 7 s for the checkpoint of step 3."""
    if snapshot.manifest.step == 3:
        time.sleep(7)
    write_snapshot(folder, snapshot, world)


@in_place_of("close", StepProfiler)
def close_slowly(close, profiler, step):
    """Rank 0 takes 6 s to write a profile, longer than a step may."""
    if profiler._profile is not None:
        time.sleep(6)
    close(profiler, step)


@in_place_of("accumulate")
def fill_disk(accumulate, engine, batch, world):
    """The disk of FILL is filled to its last byte in step 5; where FREE_AT is set, that step frees it again."""
    filler = Path(os.environ["FILL"]) / "filler"
    if batch.number == 4 and world.is_main:  # counts from 0
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1024))
    if batch.number == int(os.environ.get("FREE_AT", -1)) and world.is_main:
        filler.unlink()
    return accumulate(engine, batch, world)


@in_place_of("accumulate")
def fall_asleep(accumulate, engine, batch, world):
    """The last rank never makes step 6."""
    if batch.number == 5 and world.rank == world.size - 1:  # counts from 0
        time.sleep(1e6)
    return accumulate(engine, batch, world)


@in_place_of("fill_new_positions")
def fill_and_die(fill_new_positions, *arguments):
    """Ranks kill themselves as a phase begins: new positions are filled, and no step has been made with them."""
    fill_new_positions(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)


@in_place_of("accumulate")
def put_infinity(accumulate, engine, batch, world):
    """Embeddings have an infinity in the batch of instances 8 to 11 of phase 1, whose batches have 4.

    After each batch the casts of weights that are kept must have finite scales; their number is printed.
    """

    def spoiled(module, inputs, hidden_TD):
        spoiled_TD = hidden_TD.clone()
        spoiled_TD[0, 0] = float("inf")
        return spoiled_TD

    is_bad = batch.num_instances == 4 and stop_of(batch) == 12
    embeddings = engine.module.bert.embeddings
    with embeddings.register_forward_hook(spoiled) if is_bad else contextlib.nullcontext():
        sums = accumulate(engine, batch, world)
    casts = [cast for weight in engine.module.parameters() for cast in getattr(weight, "kept_casts", {}).values()]
    for values, scales in casts:
        assert (values.float() * scales).isfinite().all()
        assert (scales > 0).all()
    print(f"{len(casts)} casts of weights")
    return sums


@in_place_of("accumulate")
def poison(accumulate, engine, batch, world):
    """The last rank's gradients are NaN on instances 16 to 59 of phase 1, and on all of phase 2: there is no cure."""
    stop, backward = stop_of(batch), engine.backward
    is_bad = batch.num_instances == 7 or (stop > 16 and stop - batch.num_instances <= 59)
    factor = NAN if is_bad and world.rank == world.size - 1 else 1
    with mock.patch.object(engine, "backward", lambda loss, **options: backward(loss * factor, **options)):
        return accumulate(engine, batch, world)


@in_place_of("accumulate")
def poison_second_phase(accumulate, engine, batch, world):
    """The first two batches of phase 2, of 7 instances each, give NaN."""
    sums = accumulate(engine, batch, world)
    return sums * NAN if batch.num_instances == 7 and stop_of(batch) <= 14 else sums


@in_place_of("update")
def spike(update, engine, batch, *rest):
    """The loss is ten times as high on batches of phase 1, of 4 instances, with any of instances 20 to 31."""
    result = update(engine, batch, *rest)
    if batch.num_instances == 4 and 20 < stop_of(batch) <= 35:
        return replace(result, losses={**result.losses, "loss": 10 * result.losses["loss"]})
    return result


if __name__ == "__main__":
    names = sys.argv.pop(1)
    for owner, name, fault in map(FAULTS.__getitem__, names.split("+")):
        replaced = getattr(owner, name)
        setattr(owner, name, lambda *given, fault=fault, replaced=replaced, **named: fault(replaced, *given, **named))
    if "slowly" in names:  # a step has watchdog.min_step_s and no more, whatever the steps before it took
        watchdog._HANGS_AFTER_P99 = 0
    sys.exit(main())
