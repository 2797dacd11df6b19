"""``python -m integration.poisoned``: megabert whose last rank makes NaN gradients of some instances.

In phase 1 (batches of 4) of instances 16 to 59 of epoch 0, in phase 2 (batches of 7) of all.
"""

import sys

from megabert.cli.main import main
from megabert.training import trainer

FIRST, LAST = 16, 59
NAN = float("nan")


def install() -> None:
    """Wrap the trainer's step."""
    original = trainer.train_step

    def poisoned(engine, batch, world, **options):
        stop = batch.position_after.offset
        is_bad = batch.num_instances == 7 or (stop > FIRST and stop - batch.num_instances <= LAST)
        backward = engine.backward
        if is_bad and world.rank == world.size - 1:
            engine.backward = lambda loss: backward(loss * NAN)
        try:
            return original(engine, batch, world, **options)
        finally:
            engine.backward = backward

    trainer.train_step = poisoned


if __name__ == "__main__":
    install()
    sys.exit(main())
