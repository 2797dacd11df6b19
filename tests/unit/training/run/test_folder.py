import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from megabert.downstream.export.sources import open_source
from megabert.foundation.errors import CheckpointError, DataError, Echo
from megabert.settings.config.loading import load_run_config
from megabert.training.run.folder import (
    RunStatus,
    StatusRecord,
    claim_run_folder,
    fork_command,
    read_config,
    read_status,
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


def status_on(run_dir, rank: int, start: str = "first") -> RunStatus:
    world = SimpleNamespace(rank=rank, is_main=rank == 0, broadcast=lambda value: start)
    return RunStatus(run_dir, world)


def opened(run_dir, rank: int, start: str = "first") -> RunStatus:
    status = status_on(run_dir, rank, start)
    status.open()
    return status


@pytest.fixture
def main_rank(tmp_path) -> RunStatus:
    return opened(tmp_path, 0)


def test_nothing_is_written_before_the_folder_is_ours(tmp_path):
    status = status_on(tmp_path, 0)
    status.running(step=0, phase=0)
    status.failed(DataError("refused"))
    assert not list(tmp_path.iterdir())


def test_verdicts_name_place_and_code(tmp_path, main_rank):
    main_rank.running(step=7, phase=1)
    running = read_status(tmp_path)
    assert (running.status, running.step, running.phase, running.exit_code) == ("running", 7, 2, None)
    main_rank.ended(75, step=9, phase=1)
    stopped = read_status(tmp_path)
    assert (stopped.status, stopped.step, stopped.exit_code) == ("stopped", 9, 75)
    assert stopped.time >= running.time


def test_a_checkpoint_that_is_completed_late_does_not_revive_a_run(tmp_path, main_rank):
    main_rank.running(step=7, phase=0)
    main_rank.hung("rank 0 hangs")
    main_rank.running(step=8, phase=0)
    assert (read_status(tmp_path).status, read_status(tmp_path).exit_code) == ("failed", 76)


@pytest.mark.parametrize(
    ("error", "code"), [(DataError("torn shard"), 3), (ValueError("bug"), 1), (KeyboardInterrupt(), 130)]
)
def test_error_is_recorded_with_the_last_place(tmp_path, main_rank, error, code):
    main_rank.running(step=7, phase=0)
    main_rank.failed(error)
    failed = read_status(tmp_path)
    assert (failed.status, failed.exit_code, failed.step, failed.rank) == ("failed", code, 7, 0)
    assert failed.error == f"{type(error).__name__}: {error}"


def test_first_error_stands_until_the_next_start(tmp_path, main_rank):
    opened(tmp_path, 3).failed(DataError("the cause"))
    main_rank.failed(RuntimeError("connection closed by peer"))
    assert (read_status(tmp_path).error, read_status(tmp_path).rank) == ("DataError: the cause", 3)
    opened(tmp_path, 0, start="second").failed(RuntimeError("another"))
    assert read_status(tmp_path).error == "RuntimeError: another"


def test_echo_of_another_ranks_error_is_rank_0s_to_write(tmp_path):
    opened(tmp_path, 1).failed(Echo(DataError("the cause")))
    assert not list(tmp_path.iterdir())


def test_full_disk_does_not_end_a_run(tmp_path, main_rank, monkeypatch):
    def full(*_: object) -> None:
        raise DataError("no space left")

    monkeypatch.setattr("megabert.training.run.folder.atomic_write", full)
    main_rank.running(step=1, phase=0)
    main_rank.failed(DataError("first"))


def test_fourth_hang_at_one_checkpoint_is_not_tried_again(tmp_path):
    codes = []
    for start in range(5):
        status = opened(tmp_path, 0, start=str(start))
        status.running(step=6, phase=0)
        codes.append(status.hung("rank 0 hangs"))
    assert codes == [76, 76, 76, 70, 70]
    assert "for the 5th time since the checkpoint of step 6" in read_status(tmp_path).error
    status = opened(tmp_path, 0, start="later")
    status.running(step=9, phase=0)
    assert status.hung("rank 0 hangs") == 76


@pytest.mark.parametrize("rank", [0, 1])
def test_fourth_hang_of_a_start_up_is_not_tried_again(tmp_path, rank, monkeypatch):
    monkeypatch.setattr("megabert.training.run.folder._WAIT_FOR_MAIN_S", 0.0)
    assert [status_on(tmp_path, rank, start=str(start)).hung("hangs") for start in range(5)] == [76, 76, 76, 70, 70]


def test_hang_of_a_start_up_counts_since_the_checkpoint_that_the_run_has(tmp_path, main_rank):
    main_rank.running(step=6, phase=0)
    main_rank.hung("rank 0 hangs")
    status_on(tmp_path, 0, start="second").hung("rank 0 hangs")
    record = read_status(tmp_path)
    assert (record.step, record.hangs.step, record.hangs.count) == (6, 6, 2)


def test_ranks_that_hang_together_count_once_and_agree(tmp_path, monkeypatch):
    monkeypatch.setattr("megabert.training.run.folder._WAIT_FOR_MAIN_S", 0.0)
    for start in range(3):
        status_on(tmp_path, 0, start=str(start)).hung("rank 0 hangs")
    assert [status_on(tmp_path, rank, start="fourth").hung("hangs") for rank in (0, 1, 2)] == [70, 70, 70]
    assert read_status(tmp_path).rank == 0


def test_file_keeps_the_keys_that_other_programs_read(tmp_path, main_rank):
    keys = ["status", "step", "phase", "exit_code", "error", "hangs", "fork", "time", "host", "pid"]
    keys += ["start", "replaced_ops"]
    main_rank.running(step=7, phase=0)
    assert list(json.loads((tmp_path / "status.json").read_text())) == keys
    main_rank.failed(DataError("x"))
    assert list(json.loads((tmp_path / "status.json").read_text())) == [*keys[:5], "rank", *keys[5:]]


@pytest.mark.parametrize("content", ["", "[]", '{"status": "running", "step": "7"}'])
def test_damaged_file_counts_as_not_started(tmp_path, content):
    (tmp_path / "status.json").write_text(content)
    assert read_status(tmp_path) == StatusRecord()
