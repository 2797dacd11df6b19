"""256 micro-steps against one, on every stage, precision and world size."""

import pytest
from several_ranks import test_accumulation as fast_test

pytestmark = pytest.mark.soak

MICRO_STEPS = 256
ENGINES = ["zero0", "zero1", "zero2", "zero3", "bf16_zero1", "bf16_zero2", "bf16_zero3"]


TITLE = (
    "||a - b|| / ||b|| of the gradients that the optimizer saw, 256 micro-steps against one, worst parameter; "
    "bar 256 * 2**-24 = 1.5e-5, the rounding of float32 sums; accumulating in bfloat16 would give 2.5e-3"
)
COLUMNS = f"{'world':>5} {'engine':<11} {'worst':>8}"


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_256_micro_steps_equal_one(workers, table, world_size, engine):
    errors = workers(world_size).run(fast_test.accumulation_errors, engine, MICRO_STEPS, timeout_s=280)[0]
    worst = max(errors.values())
    table.add(f"{world_size:>5} {engine:<11} {worst:8.1e}")
    assert worst <= MICRO_STEPS * fast_test.ROUNDING, errors
