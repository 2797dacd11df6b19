"""``python -m integration.programs.filling``: megabert that fills its disk in step 5 and may free it later.

Tests start it in place of ``python -m megabert``. The folder to fill is FILL. The disk is filled to the last byte, so
that nothing can be written at all; where FREE_AT is set, it is freed again in that step.
"""

import contextlib
import os
import sys
from pathlib import Path

from megabert.cli import main
from megabert.training import trainer


def install() -> None:
    """Wrap the trainer's step."""
    original = trainer.accumulate
    filler = Path(os.environ["FILL"]) / "filler"
    free_at = int(os.environ.get("FREE_AT", -1))

    def fill_and_free(engine, batch, world):
        if batch.number == 4 and world.is_main:  # counts from 0
            with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(1024))
        if batch.number == free_at and world.is_main:
            filler.unlink()
        return original(engine, batch, world)

    trainer.accumulate = fill_and_free


if __name__ == "__main__":
    install()
    sys.exit(main())
