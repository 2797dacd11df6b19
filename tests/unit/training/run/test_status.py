import json
from types import SimpleNamespace

import pytest

from megabert.foundation.errors import DataError, Echo
from megabert.training.run.status import RunStatus, StatusRecord, read_status


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

    monkeypatch.setattr("megabert.training.run.status.write_json", full)
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
    monkeypatch.setattr("megabert.training.run.status._WAIT_FOR_MAIN_S", 0.0)
    assert [status_on(tmp_path, rank, start=str(start)).hung("hangs") for start in range(5)] == [76, 76, 76, 70, 70]


def test_hang_of_a_start_up_counts_since_the_checkpoint_that_the_run_has(tmp_path, main_rank):
    main_rank.running(step=6, phase=0)
    main_rank.hung("rank 0 hangs")
    status_on(tmp_path, 0, start="second").hung("rank 0 hangs")
    record = read_status(tmp_path)
    assert (record.step, record.hangs.step, record.hangs.count) == (6, 6, 2)


def test_ranks_that_hang_together_count_once_and_agree(tmp_path, monkeypatch):
    monkeypatch.setattr("megabert.training.run.status._WAIT_FOR_MAIN_S", 0.0)
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
