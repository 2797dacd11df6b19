"""``python -m integration.programs.filling``: megabert that fills its disk in step 5 and may free it later.

The folder to fill is FILL. The disk is filled to the last byte, so that nothing can be written at all; where FREE_AT is
set, it is freed again in that step.
"""

import contextlib
import os
from pathlib import Path

from integration.programs.instead import run_megabert


def fill_and_free(accumulate, engine, batch, world):
    filler = Path(os.environ["FILL"]) / "filler"
    if batch.number == 4 and world.is_main:  # counts from 0
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1024))
    if batch.number == int(os.environ.get("FREE_AT", -1)) and world.is_main:
        filler.unlink()
    return accumulate(engine, batch, world)


if __name__ == "__main__":
    run_megabert(accumulate=fill_and_free)
