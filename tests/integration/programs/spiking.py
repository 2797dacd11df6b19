"""``python -m integration.programs.spiking``: megabert whose loss is ten times as high on some instances.

A batch spikes where instances 20 to 31 of epoch 0 are in it, in phase 1, whose batches have 4 instances.
"""

from dataclasses import replace

from integration.programs.instead import run_megabert

FIRST, LAST = 20, 31


def spike(update, engine, batch, *rest):
    result, stop = update(engine, batch, *rest), max(part.stop for parts in batch.ranges.values() for part in parts)
    if batch.num_instances == 4 and stop > FIRST and stop - 4 <= LAST:
        return replace(result, losses={**result.losses, "loss": 10 * result.losses["loss"]})
    return result


if __name__ == "__main__":
    run_megabert(update=spike)
