"""``python -m integration.programs.failing``: megabert with a torn shard in step 6 on rank FAILING_RANK."""

import os

from integration.programs.instead import run_megabert

from megabert.foundation.errors import DataError


def fail(accumulate, engine, batch, world):
    if batch.number == 5 and world.rank == int(os.environ["FAILING_RANK"]):  # counts from 0
        raise DataError("a torn shard")
    return accumulate(engine, batch, world)


if __name__ == "__main__":
    run_megabert(accumulate=fail)
