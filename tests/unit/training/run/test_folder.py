import subprocess
from dataclasses import replace

import pytest

from megabert.downstream.export.sources import open_source
from megabert.foundation.errors import CheckpointError
from megabert.settings.config.loading import load_run_config
from megabert.training.run.folder import claim_run_folder, read_config, record_run

CONFIG = load_run_config("debug")


def test_new_and_empty_folders_are_claimed(tmp_path):
    assert claim_run_folder(tmp_path / "new", CONFIG) == []
    assert claim_run_folder(tmp_path, CONFIG) == []


def test_folder_of_a_start_that_was_killed_at_once_is_claimed(tmp_path):
    for name in ("logs", "heartbeats"):
        (tmp_path / name).mkdir()
    for name in (".lock", "status.json"):  # the latter records a start-up that hung
        (tmp_path / name).touch()
    assert claim_run_folder(tmp_path, CONFIG) == []


def test_recorded_run_is_read_back(tmp_path):
    record_run(tmp_path, CONFIG, {"zero_optimization": {"stage": 1}})
    assert read_config(tmp_path) == CONFIG
    assert claim_run_folder(tmp_path, CONFIG) == []


def test_engine_field_may_change_and_is_said(tmp_path):
    record_run(tmp_path, CONFIG, {})
    assert claim_run_folder(tmp_path, replace(CONFIG, engine="zero3")) == ["engine: 'auto' -> 'zero3'"]


def test_science_field_is_refused_with_the_difference(tmp_path):
    record_run(tmp_path, CONFIG, {})
    with pytest.raises(CheckpointError, match=r"seed: 42 -> 43") as error:
        claim_run_folder(tmp_path, replace(CONFIG, seed=43))
    assert f"megabert pretrain --fork {tmp_path}@STEP --run-dir NEW" in str(error.value)


@pytest.mark.parametrize(
    "look", [lambda run: claim_run_folder(run, CONFIG), read_config, lambda run: open_source(str(run))]
)
def test_lost_configuration_comes_back_by_the_command_of_the_message(tmp_path, look):
    run_dir = tmp_path / "my run"
    record_run(run_dir, CONFIG, {})
    (run_dir / "checkpoints/step_00000005").mkdir()
    (run_dir / "config.yaml").unlink()
    with pytest.raises(CheckpointError, match="is lost, and the run has checkpoints up to step 5") as error:
        look(run_dir)
    assert "another --run-dir" not in str(error.value)
    subprocess.run(str(error.value).partition("Copy it back: ")[2], shell=True, check=True)
    assert read_config(run_dir) == CONFIG
    assert claim_run_folder(run_dir, CONFIG) == []
    for path in (run_dir / "config.yaml", run_dir / "checkpoints/config.yaml"):
        path.unlink()
    with pytest.raises(
        CheckpointError, match=r"Copy it from a backup, or write it from the commands in .*command\.txt"
    ):
        look(run_dir)


def test_foreign_folder_is_refused_and_untouched(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(CheckpointError, match="no run folder"):
        claim_run_folder(tmp_path, CONFIG)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
