"""``python -m integration.programs.poisoned_second_phase``: megabert whose first two batches of phase 2 give NaN.

Phase 2 has batches of 7 instances, and its first 14 are bad.
"""

from integration.programs.instead import run_megabert


def poison(accumulate, engine, batch, world):
    sums = accumulate(engine, batch, world)
    stop = max(part.stop for parts in batch.ranges.values() for part in parts)
    return sums * float("nan") if batch.num_instances == 7 and stop <= 14 else sums


if __name__ == "__main__":
    run_megabert(accumulate=poison)
