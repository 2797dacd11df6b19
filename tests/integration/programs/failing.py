"""``python -m integration.programs.failing``: megabert with a torn shard in step 6 on rank FAILING_RANK.

Tests start it in place of ``python -m megabert``.
"""

import os
import sys

from megabert.cli import main
from megabert.foundation.errors import DataError
from megabert.training import trainer


def install() -> None:
    """Wrap the trainer's step."""
    original = trainer.accumulate

    def fail(engine, batch, world):
        if batch.number == 5 and world.rank == int(os.environ["FAILING_RANK"]):  # counts from 0
            raise DataError("a torn shard")
        return original(engine, batch, world)

    trainer.accumulate = fail


if __name__ == "__main__":
    install()
    sys.exit(main())
