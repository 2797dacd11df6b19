"""``python -m integration.programs.hanging``: megabert whose last rank falls asleep in step 6."""

import time

from integration.programs.instead import run_megabert


def fall_asleep(accumulate, engine, batch, world):
    if batch.number == 5 and world.rank == world.size - 1:  # counts from 0
        time.sleep(1e6)
    return accumulate(engine, batch, world)


if __name__ == "__main__":
    run_megabert(accumulate=fall_asleep)
