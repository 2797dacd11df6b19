"""Resume from every ZeRO stage on 2 ranks to every stage on 1 to 4: losses of the unbroken run."""

import itertools

import pytest
from several_ranks.test_checkpoints_resume import resume, save_and_go_on
from soak.test_zero_lamb import only

pytestmark = pytest.mark.soak

STAGES = ["zero0", "zero1", "zero2", "zero3"]


TITLE = (
    "largest relative difference of the losses of steps 6 to 10 to the unbroken run on 2 ranks; "
    "bar 1e-6 in fp32; new processes on the same stage and world: 0"
)
COLUMNS = f"{'from':<11} {'to':<11} {'world':>5} {'worst':>8}"


@pytest.fixture(scope="module")
def saved(workers, tmp_path_factory):
    """Checkpoint folder and losses of the unbroken run, by engine."""
    runs = {}
    for engine in STAGES:
        folder = tmp_path_factory.mktemp(engine)
        runs[engine] = folder, workers(2).run(save_and_go_on, engine, folder, timeout_s=280)[0]
    return runs


# World by world, so that each is started once.
@pytest.mark.parametrize(("world_size", "first", "second"), itertools.product((2, 1, 3, 4), STAGES, STAGES))
def test_resume(workers, saved, table, world_size, first, second):
    folder, unbroken = saved[first]
    losses = only(workers, world_size).run(resume, second, folder, timeout_s=280)[0]
    worst = max(abs(a - b) / b for a, b in zip(losses, unbroken, strict=True))
    table.add(f"{first:<11} {second:<11} {world_size:>5} {worst:8.1e}")
    assert worst <= 1e-6


# A process runs one stage in real life: creating a ZeRO-3 engine replaces torch's linear for the whole process, which
# rounds differently in bfloat16. So these worlds are started afresh.
@pytest.mark.parametrize("engine", [*STAGES, "bf16_zero1", "bf16_zero2", "bf16_zero3"])
def test_new_processes_on_the_same_stage_and_world_are_bit_identical(workers, table, tmp_path, engine):
    workers.close()
    unbroken = workers(2).run(save_and_go_on, engine, tmp_path, timeout_s=280)[0]
    workers.close()
    losses = workers(2).run(resume, engine, tmp_path, timeout_s=280)[0]
    worst = max(abs(a - b) / b for a, b in zip(losses, unbroken, strict=True))
    table.add(f"{engine:<11} {engine:<11} {2:>5} {worst:8.1e}  new processes")
    assert losses == unbroken
