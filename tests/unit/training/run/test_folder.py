import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from megabert.downstream.export.sources import open_source
from megabert.foundation.errors import CheckpointError, DataError
from megabert.settings.config.loading import load_run_config
from megabert.training.run.folder import (
    claim_run_folder,
    fork_command,
    read_config,
    record_run,
    run_sources,
    with_found_data,
)

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


def test_a_command_is_one_line_which_bash_reads_back(tmp_path, monkeypatch):
    words = ["pretrain", "--name", "it's\ntwo\n", "\n'"]
    monkeypatch.setattr(sys, "argv", ["megabert", *words])
    record_run(tmp_path, CONFIG, {})
    (line,) = (tmp_path / "command.txt").read_text().splitlines()
    said = subprocess.run(["bash", "-c", rf"printf '%s\0' {line}"], capture_output=True, text=True, check=True).stdout
    assert said.split("\0")[:-1] == [sys.executable, "-m", "megabert", *words]


def test_data_and_cache_are_found_from_another_folder(tmp_path, monkeypatch):
    run_dir, project, other = (tmp_path / name for name in ("run", "project", "other"))
    for folder in (run_dir, project / "data/instances/128", project / "wiki/instances", other / "data/raw"):
        folder.mkdir(parents=True)
    (run_dir / "environment.json").write_text(json.dumps({"folder": str(project)}))
    monkeypatch.chdir(other)  # its own folder "data" holds no shards
    flags = {"data": {"path": "data", "cache": "cache"}}
    config = load_run_config("debug", flags=flags)
    found = with_found_data(run_dir, config).data
    assert (found.path, found.cache) == (str(project / "data"), str(project / "cache"))
    assert run_sources(run_dir, config, config.phases[0]) == [project / "data/instances/128"]
    sources = {"wiki": "wiki", "gone": "gone"}  # a build that no phase reads may be gone
    phases = {number: {"mixture": {"wiki": 1, "gone": 0}} for number in map(str, range(len(config.phases)))}
    config = load_run_config("debug", flags={"data": {"sources": sources}, "phases": phases})
    assert with_found_data(run_dir, config).data.sources == {"wiki": str(project / "wiki"), "gone": "gone"}
    config = replace(config, data=replace(config.data, sources={"gone": "gone", "wiki": "nowhere"}))
    with pytest.raises(DataError, match=r"nowhere: the shards of .* are not there, seen from"):
        with_found_data(run_dir, config)


def test_engine_field_may_change_and_is_said(tmp_path):
    record_run(tmp_path, CONFIG, {})
    assert claim_run_folder(tmp_path, replace(CONFIG, engine="zero3")) == ["engine: 'auto' -> 'zero3'"]


def test_science_field_is_refused_with_the_difference(tmp_path):
    record_run(tmp_path, CONFIG, {})
    with pytest.raises(CheckpointError, match=r"seed: 42 -> 43") as error:
        claim_run_folder(tmp_path, replace(CONFIG, seed=43))
    assert f"megabert pretrain --fork {tmp_path}@STEP --run-dir NEW" in str(error.value)


def test_command_of_a_fork_quotes_the_folder():
    assert fork_command(Path("my runs")) == "megabert pretrain --fork 'my runs@STEP' --run-dir NEW ..."


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
    with pytest.raises(CheckpointError, match=r"Copy it from a backup, or write it from the commands in .*command"):
        look(run_dir)


def test_foreign_folder_is_refused_and_untouched(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(CheckpointError, match="no run folder"):
        claim_run_folder(tmp_path, CONFIG)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
