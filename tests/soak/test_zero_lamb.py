"""LAMB under every ZeRO stage and world size against a float64 reference fed the gradients that the optimizer saw."""

import pytest
from several_ranks import optimizer_reference
from several_ranks.worker_group import WorkerGroups

pytestmark = pytest.mark.soak

ENGINES = ["zero0", "zero1", "zero2", "zero3", "bf16_zero1"]
CELLS = [
    (world_size, engine, variant)
    for world_size in (1, 2, 3, 4)
    for engine in ENGINES
    for variant in ("apex", "nvlamb", "paper", "deepspeed")
]


TITLE = (
    "||a - b|| / ||b|| of the parameter that is worst, 100 steps, padding of ZeRO-3 poisoned with NaN; bar 1e-6; "
    "stock LAMB is the negative control (20 steps)"
)
COLUMNS = f"{'world':>5} {'engine':<11} {'variant':<10} {'worst':>8}  parameter"


def only(workers: WorkerGroups, size: int):
    """One world at a time: ten processes would crowd a small machine."""
    for other in [other for other in workers.groups if other != size]:
        workers.close(other)
    return workers(size)


@pytest.mark.parametrize(("world_size", "engine", "variant"), CELLS)
def test_lamb_is_exact(workers, table, world_size, engine, variant):
    errors = only(workers, world_size).run(
        optimizer_reference.optimizer_errors, engine, variant=variant, timeout_s=280
    )[0]
    worst = max(errors, key=errors.get)
    table.add(f"{world_size:>5} {engine:<11} {variant:<10} {errors[worst]:8.1e}  {worst}")
    assert errors[worst] <= 1e-6, errors


@pytest.mark.parametrize("engine", [engine for engine in ENGINES if engine != "zero0"])  # whole parameters there
@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_stock_lamb_fails(workers, table, world_size, engine):
    group = only(workers, world_size)
    errors = group.run(optimizer_reference.optimizer_errors, engine, steps=20, attached=False, timeout_s=280)[0]
    for name in ("gain_bias", "pair", "dense.weight"):  # each alone, or nearly so, in one rank's window of a bucket
        errors.pop(name)
    best = min(errors, key=errors.get)
    table.add(f"{world_size:>5} {engine:<11} {'STOCK':<10} {errors[best]:8.1e}  {best} (the best one)")
    assert errors[best] > 1e-5, errors
