"""What a step sends at every stage on 2, 4 and 8 ranks."""

import pytest
from several_ranks import counted_training
from soak.test_zero_optimizers import only

pytestmark = pytest.mark.soak

MOST_BYTES = {
    "zero0": lambda k: 8.1,
    "zero1": lambda k: 8.1,
    "bf16_zero1": lambda k: 6.1,
    "zero2": lambda k: 4 * k + 4.1,
    "bf16_zero2": lambda k: 4 * k + 2.1,
}
"""A parameter and step, on very many ranks, for k micro-steps."""
ENGINES = [*MOST_BYTES, "zero3", "bf16_zero3"]


TITLE = (
    "bytes a parameter and step that a rank sends over a ring, here and on very many ranks; collectives, and those "
    "of at least 1% of the parameters"
)
COLUMNS = f"{'world':>5} {'engine':<11} {'micro-steps':>11} {'bytes':>6} {'many':>6} calls large"


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_bytes_on_the_wire(workers, table, world_size, engine):
    for micro_steps in (1, 4):
        row = only(workers, world_size).run(counted_training.counted_step, engine, micro_steps, timeout_s=280)[0]
        table.add(
            f"{world_size:>5} {engine:<11} {micro_steps:>11} {row['bytes']:6.2f} {row['many_ranks']:6.2f} "
            f"{row['collectives']:>5} {row['large']:>5}"
        )
        if engine in MOST_BYTES:
            assert row["many_ranks"] <= MOST_BYTES[engine](micro_steps)
