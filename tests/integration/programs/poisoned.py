"""``python -m integration.programs.poisoned``: megabert whose last rank makes NaN gradients of some instances.

Tests start it in place of ``python -m megabert``. Poisoned are instances 16 to 59 of epoch 0 in phase 1, whose batches
have 4 instances, and all instances in phase 2, whose batches have 7: there no rollback can help.
"""

import sys

from megabert.cli import main
from megabert.training import trainer

FIRST, LAST = 16, 59
NAN = float("nan")


def install() -> None:
    """Wrap the trainer's step."""
    original = trainer.accumulate

    def poisoned(engine, batch, world):
        stop = batch.position_after.offset
        is_bad = batch.num_instances == 7 or (stop > FIRST and stop - batch.num_instances <= LAST)
        backward = engine.backward
        if is_bad and world.rank == world.size - 1:
            engine.backward = lambda loss, **options: backward(loss * NAN, **options)
        try:
            return original(engine, batch, world)
        finally:
            engine.backward = backward

    trainer.accumulate = poisoned


if __name__ == "__main__":
    install()
    sys.exit(main())
