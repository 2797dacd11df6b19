"""A disk that fills while a run trains: training continues with the last good checkpoint, only the end needs space."""

import pytest
from support.runs import Run

from megabert.checkpoints.loading import find_checkpoint


@pytest.fixture
def run(small_disk, shards, tmp_path, monkeypatch) -> Run:
    monkeypatch.setenv("FILL", str(small_disk))
    # The vocabulary is most of this model: a checkpoint takes 0.6 MiB.
    return Run(small_disk / "run", shards, fault="fill_disk", output_path=tmp_path / "out")


def test_training_continues_on_a_full_disk_and_ends_well_once_it_is_freed(run, monkeypatch):
    monkeypatch.setenv("FREE_AT", "10")
    rows = run.finish_well()
    assert "CHECKPOINT NOT WRITTEN, the last good one stays" in run.output
    assert [row["step"] for row in rows if "train/loss" in row] == list(range(1, 14)), "no row is lost"
    assert find_checkpoint(run.run_dir / "checkpoints").name == "step_00000013"
    assert not list((run.run_dir / "checkpoints").glob(".tmp*"))


def test_last_checkpoint_that_cannot_be_written_is_an_error(run):
    assert run.finish() == 4, run.output[-3000:]
    assert "megabert: CheckpointError:" in run.output
    assert "MiB are needed" in run.output
    assert "Traceback" not in run.output.split("megabert: CheckpointError:")[1]
    assert find_checkpoint(run.run_dir / "checkpoints").name == "step_00000003"
    assert not list((run.run_dir / "checkpoints").glob(".tmp*"))
