"""``python -m integration.programs.poisoned``: megabert whose last rank makes NaN gradients of some instances.

Poisoned are instances 16 to 59 of epoch 0 in phase 1, whose batches have 4 instances, and all instances in phase 2,
whose batches have 7: there no rollback can help.
"""

from unittest import mock

from integration.programs.instead import run_megabert

FIRST, LAST = 16, 59
NAN = float("nan")


def poison(accumulate, engine, batch, world):
    stop, backward = max(part.stop for parts in batch.ranges.values() for part in parts), engine.backward
    is_bad = batch.num_instances == 7 or (stop > FIRST and stop - batch.num_instances <= LAST)
    factor = NAN if is_bad and world.rank == world.size - 1 else 1
    with mock.patch.object(engine, "backward", lambda loss, **options: backward(loss * factor, **options)):
        return accumulate(engine, batch, world)


if __name__ == "__main__":
    run_megabert(accumulate=poison)
