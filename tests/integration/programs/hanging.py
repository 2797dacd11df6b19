"""``python -m integration.programs.hanging``: megabert whose last rank falls asleep in step 6.

Tests start it in place of ``python -m megabert``.
"""

import sys
import time

from megabert.cli import main
from megabert.training import trainer


def install() -> None:
    """Wrap the trainer's step."""
    original = trainer.accumulate

    def fall_asleep(engine, batch, world):
        if batch.number == 5 and world.rank == world.size - 1:  # counts from 0
            time.sleep(1e6)
        return original(engine, batch, world)

    trainer.accumulate = fall_asleep


if __name__ == "__main__":
    install()
    sys.exit(main())
