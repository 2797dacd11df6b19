"""Where a longer phase begins with new positions: the rows themselves, a kill -9, a move, and a rollback to there."""

import shutil
from pathlib import Path

import pytest
import torch
from support.runs import Run, assert_equal_runs, finished

from megabert.checkpoints.loading import find_checkpoint, read_masters
from megabert.models.convert import POSITIONS

TILED = {"phases.1.new_positions": "tile"}
END, OLD, NEW = 8, 64, 128
"""Steps of phase 1, and the lengths of the two phases."""


def table_at(run: Run, step: int) -> torch.Tensor:
    """Return the position table of a checkpoint."""
    return read_masters(find_checkpoint(run.run_dir / "checkpoints", step))[POSITIONS]


def killed_at_border(run_dir: Path, shards: Path, **flags: object) -> Run:
    """Return a run whose two ranks have killed themselves between filling the rows and the first step with them."""
    run = Run(run_dir, shards, ranks=2, flags=flags, fault="fill_and_die")
    assert run.finish() != 0
    assert list(run.losses()) == list(range(1, END + 1))
    return run


def resume_elsewhere(expected: Run, run_dir: Path, ranks: int, engine: str) -> float:
    """Resume a killed run with other ranks and another stage; return the largest relative difference of a loss."""
    run = finished(run_dir, expected.data, ranks=ranks, flags={**expected.flags, "engine": engine})
    assert run.losses().keys() == expected.losses().keys()
    return max(abs(run.losses()[step] / loss - 1) for step, loss in expected.losses().items())


@pytest.fixture(scope="session")
def tiled_run(shards, run_once) -> Run:
    """A complete run of two ranks that nothing interrupted, whose second phase begins with tiled positions."""
    return run_once("tiled", shards, ranks=2, flags={**TILED, "checkpoint.keep_last": 9})


def test_only_the_second_phase_differs_from_a_run_that_keeps_its_rows(tiled_run, uninterrupted_run):
    tiled, kept = tiled_run.losses(), uninterrupted_run.losses()
    assert [step for step in kept if tiled[step] == kept[step]] == list(range(1, END + 1))
    assert "positions 64 to 127 begin as copies of positions 1 to 62, which are trained" in tiled_run.output
    end, later = (table_at(tiled_run, step) for step in (END, END + 1))
    assert torch.equal(end, table_at(uninterrupted_run, END)), "the checkpoint of the end has the old rows"
    new, source = later[OLD:NEW], later[1 : OLD - 1].repeat(2, 1)[: NEW - OLD]
    assert (new - source).norm() < 0.5 * new.norm(), "a step away from what they were copied from"
    assert (end[OLD:NEW] - source).norm() > source.norm()
    assert torch.equal(later[NEW:].sign(), end[NEW:].sign()), "weight decay alone"


def test_killed_at_the_border_resumes_with_other_ranks_and_stage(tiled_run, shards, tmp_path):
    killed = killed_at_border(tmp_path / "run", shards, **TILED)
    assert resume_elsewhere(tiled_run, killed.run_dir, ranks=3, engine="zero3") < 1e-6


def test_rollback_to_the_border_fills_the_rows_again(shards, tmp_path):
    """Two bad batches at once: back to the end of phase 1, and from there into phase 2 without their instances."""
    flags = {**TILED, "rollback.after_skips": 2, "checkpoint.keep_last": 9}
    run = finished(tmp_path / "run", shards, flags=flags, fault="poison_second_phase")
    assert run.output.count("begin as copies of positions 1 to 62") == 2
    border = table_at(run, END)  # written again by the rollback
    assert torch.equal(border[OLD:NEW], border[1 : OLD - 1].repeat(2, 1)[: NEW - OLD])
    assert [row["train/rollbacks"] for row in run.rows() if row["step"] > END and "train/loss" in row] == [1] * 5


STAGES = ["zero0", "zero1", "zero2", "zero3"]


@pytest.fixture(scope="session")
def killed_on(shards, made_once):
    """``killed_on(engine)`` is the folder of a run that was killed at the border on that stage; copy it."""

    def run_dir_of(engine: str) -> Path:
        made = made_once(f"killed_{engine}", lambda at: killed_at_border(at / "run", shards, **TILED, engine=engine))
        return made / "run"

    return run_dir_of


@pytest.mark.soak
@pytest.mark.parametrize("engine", STAGES)
def test_killed_at_the_border_resumes_bit_for_bit(shards, killed_on, tmp_path, engine):
    whole, resumed = (Run(tmp_path / name, shards, ranks=2, flags={**TILED, "engine": engine}) for name in "ab")
    shutil.copytree(killed_on(engine), resumed.run_dir)
    for run in (whole, resumed):
        run.finish_well()
    assert_equal_runs(resumed, whole)


@pytest.mark.soak
@pytest.mark.parametrize("engine", STAGES)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("first", STAGES)
def test_killed_at_the_border_and_moved_to_every_stage(tiled_run, killed_on, tmp_path, first, ranks, engine):
    run_dir = Path(shutil.copytree(killed_on(first), tmp_path / "run"))
    difference = resume_elsewhere(tiled_run, run_dir, ranks, engine)
    print(f"\n2 ranks, {first} -> {ranks} ranks, {engine}: largest relative difference {difference:.1e}")
    assert difference < 1e-6


@pytest.mark.soak
@pytest.mark.parametrize(("ranks", "engine"), [(1, "zero3"), (3, "zero0"), (3, "zero2"), (4, "zero1")])
def test_killed_run_with_shifted_positions_resumes_with_other_ranks_and_stage(shards, tmp_path, ranks, engine):
    shifted = {"phases.0.position_offset": "random", "phases.1.position_offset": "random"}
    whole = finished(tmp_path / "whole", shards, ranks=2, flags=shifted)
    killed = killed_at_border(tmp_path / "run", shards, **shifted)
    assert resume_elsewhere(whole, killed.run_dir, ranks, engine) < 1e-6
