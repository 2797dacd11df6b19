"""A run resumed from a checkpoint, on the same or another ZeRO stage and world, against an uninterrupted one."""

from itertools import product
from pathlib import Path

import pytest
from several_ranks.saving import save_checkpoint
from several_ranks.toy_training import make_engine, train_step
from support.soak import in_soak

from megabert.checkpoints.loading import find_checkpoint, load_checkpoint

STAGES = ("zero0", "zero1", "zero2", "zero3")
# Stages of the run that saves on two ranks and of the run that continues, its world, the optimizer.
PAIRS = [
    *[("zero2", "zero0", 2, "lamb"), ("zero1", "zero3", 3, "stable_adamw"), ("zero3", "zero1", 3, "muon")],
    *in_soak(*product(STAGES, STAGES, (1, 2, 3, 4), ["lamb"])),
]


@pytest.mark.parametrize(("first", "second", "world_size", "optimizer"), PAIRS)
def test_resume_on_another_stage_and_world_keeps_the_losses(workers, tmp_path, first, second, world_size, optimizer):
    unbroken = workers(2).run(save_and_go_on, first, tmp_path, optimizer)[0]
    resumed = workers(world_size).run(resume, second, tmp_path, optimizer)[0]
    assert resumed == pytest.approx(unbroken, rel=1e-6)


@pytest.mark.parametrize("engine", ["zero3", "bf16_zero1"])
def test_resume_on_the_same_stage_and_world_is_bit_identical(workers, tmp_path, engine):
    unbroken = workers(2).run(save_and_go_on, engine, tmp_path)[0]
    assert workers(2).run(resume, engine, tmp_path)[0] == unbroken


# A process runs one stage in real life: creating a ZeRO-3 engine replaces torch's linear for the whole process, which
# rounds differently in bfloat16. So these worlds are started afresh.
@pytest.mark.soak
@pytest.mark.parametrize("engine", [*STAGES, "bf16_zero1", "bf16_zero2", "bf16_zero3"])
def test_resume_in_new_processes_is_bit_identical(workers, tmp_path, engine):
    workers.close()
    unbroken = workers(2).run(save_and_go_on, engine, tmp_path, timeout_s=280)[0]
    workers.close()
    assert workers(2).run(resume, engine, tmp_path, timeout_s=280)[0] == unbroken


def save_and_go_on(world, engine_name, folder: Path, optimizer: str = "lamb") -> list[float]:
    engine = make_engine(world, engine_name, optimizer=optimizer, clip=0.0 if optimizer == "muon" else 1.0)
    for step in range(1, 6):
        train_step(engine, world, step)
    save_checkpoint(folder, 5, engine, {"step": 5}, world)
    return [train_step(engine, world, step) for step in range(6, 11)]


def resume(world, engine_name, folder: Path, optimizer: str = "lamb") -> list[float]:
    engine = make_engine(world, engine_name, optimizer=optimizer, clip=0.0 if optimizer == "muon" else 1.0)
    assert load_checkpoint(find_checkpoint(folder), engine, world)["step"] == 5
    return [train_step(engine, world, step) for step in range(6, 11)]
