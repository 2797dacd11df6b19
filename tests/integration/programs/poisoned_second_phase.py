"""``python -m integration.programs.poisoned_second_phase``: megabert whose first two batches of phase 2 give NaN.

Tests start it in place of ``python -m megabert``. Phase 2 has batches of 7 instances, and its first 14 are bad.
"""

import sys

from megabert.cli import main
from megabert.training import trainer


def install() -> None:
    """Wrap the trainer's sums."""
    original = trainer.accumulate

    def poisoned(engine, batch, world):
        sums = original(engine, batch, world)
        is_bad = batch.num_instances == 7 and batch.position_after.offset <= 14
        return sums * float("nan") if is_bad else sums

    trainer.accumulate = poisoned


if __name__ == "__main__":
    install()
    sys.exit(main())
