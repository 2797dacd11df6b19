"""``python -m integration.programs.spiking``: megabert whose loss is ten times as high on some instances.

Tests start it in place of ``python -m megabert``. A batch spikes where instances 20 to 31 of epoch 0 are in it, in
phase 1, whose batches have 4 instances.
"""

import sys
from dataclasses import replace

from megabert.cli import main
from megabert.training import trainer

FIRST, LAST = 20, 31


def install() -> None:
    """Wrap the trainer's step."""
    original = trainer.update

    def spiking(engine, batch, *rest):
        result = original(engine, batch, *rest)
        stop = batch.position_after.offset
        if batch.num_instances == 4 and stop > FIRST and stop - 4 <= LAST:
            return replace(result, losses={**result.losses, "loss": 10 * result.losses["loss"]})
        return result

    trainer.update = spiking


if __name__ == "__main__":
    install()
    sys.exit(main())
