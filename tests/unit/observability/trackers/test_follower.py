"""Reading the growing file; trackio and wandb themselves, offline: their own readers find the rows of the file."""

import errno
import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
from support.tracker_stores import expected_points, read_trackio, read_wandb

from megabert.cli import main
from megabert.foundation import files
from megabert.foundation.errors import DataError
from megabert.foundation.files import atomic_write
from megabert.observability.metrics import MetricWriter
from megabert.observability.trackers import follower
from megabert.observability.trackers.follower import flat, follow_run, new_rows, run_id
from megabert.settings.config.loading import load_run_config
from megabert.settings.config.run import LoggingConfig
from megabert.training.run.folder import record_run


def test_rows_are_read_as_the_file_grows(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "a": 1.0}\n{"step": 2, "a"')
    with path.open("rb") as rows, path.open("a") as file:
        assert list(new_rows(rows)) == [{"step": 1, "a": 1.0}]
        file.write(': 2.0}\n{"step": 3}\n')
        file.flush()
        assert [row["step"] for row in new_rows(rows)] == [2, 3]


def test_damaged_lines_are_left_out(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'[]\n\xff\n{"step": "1"}\n' + b"[" * 100_000 + b'\n{"step": 1}\n')
    with path.open("rb") as rows:
        assert list(new_rows(rows)) == [{"step": 1}]


def test_numbers_have_the_names_that_tensorboard_shows():
    row = {"step": 3, "phase": 1, "train/loss": 2.0, "train/trust_ratio/all": {"min": 1.0, "max": 3.0}, "none": None}
    assert flat(row) == {
        "progress/phase": 1,
        "train/loss": 2.0,
        "train/trust_ratio/all/min": 1.0,
        "train/trust_ratio/all/max": 3.0,
    }


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """A run folder with a configuration, and trackio's own folder next to it; rows must not go elsewhere."""
    for name in ("trackio", "wandb"):
        if find_spec(name) is None:
            pytest.skip(f"{name} is not installed: pip install 'megabert[{name}]'")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("TRACKIO_SERVER_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_MODE", "online")
    (tmp_path / "run").mkdir()
    atomic_write(tmp_path / "run" / "config.yaml", "seed: 42\nphases:\n- max_seq_length: 64\nengine: null\n")
    return tmp_path / "run"


def write(run_dir, resumed_step, steps, *, loss=1.0, trackers=("trackio", "wandb")):
    logging = LoggingConfig(trackers=trackers, tracker_project="tests")
    writer = MetricWriter(run_dir, resumed_step=resumed_step, logging=logging)
    for step in steps:
        writer.write(step, {"phase": 1, "train/loss": loss / step, "train/trust_ratio/all": [1.0, 2.0]})
        if step % 3 == 0:
            writer.write(step, {"phase": 1, "eval/mlm_loss": 2.0 / step})
    writer.close()


def test_stores_hold_the_rows_of_a_run_that_was_set_back(begun, caplog):
    write(begun, 0, range(1, 8))
    write(begun, 5, range(6, 10), loss=3.0)  # steps 6 and 7 are made again, with other values
    assert "WARNING" not in {record.levelname for record in caplog.records}, caplog.text
    expected = expected_points(begun)
    assert sorted(expected) == list(range(1, 10))
    assert expected[6]["train/loss"] == 0.5
    points, config = read_wandb(begun)
    assert points == expected
    assert {name: config[name] for name in ("seed", "phases.0.max_seq_length")} == {
        "seed": 42,
        "phases.0.max_seq_length": 64,
    }
    runs, configs = read_trackio("tests")
    assert runs == {run_id(begun): expected}
    assert configs[run_id(begun)]["phases.0.max_seq_length"] == 64


def test_trackers_that_start_together_take_one_name(tmp_path, monkeypatch):
    both, write = threading.Barrier(2), files.atomic_write

    def write_late(*given):
        with suppress(threading.BrokenBarrierError):
            both.wait(1)  # so that the other one, if nothing holds it back, has looked for the file too
        write(*given)

    monkeypatch.setattr(files, "atomic_write", write_late)
    (tmp_path / "logs").mkdir()
    with ThreadPoolExecutor(2) as pool:
        names = list(pool.map(run_id, [tmp_path, tmp_path]))
    assert names[0] == names[1] == run_id(tmp_path)


class _Library(SimpleNamespace):
    """In the place of wandb: drops rows and reports nothing."""

    step = 0

    def log(self, *_, **__):
        pass

    finish = log


def test_full_disk_under_wandb_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **_: _Library(), Settings=lambda **_: None))
    (tmp_path / "wandb").mkdir()
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    follow_run("wandb", tmp_path, LoggingConfig(), lambda: True)
    assert list((tmp_path / "wandb").iterdir()) == [], "the look for space leaves nothing"

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(follower.files, "write_durably", full)
    with pytest.raises(DataError, match="no space left"):
        follow_run("wandb", tmp_path, LoggingConfig(), lambda: True)


@pytest.mark.soak
def test_fork_has_a_curve_of_its_own(begun, tmp_path):
    fork = tmp_path / "fork"
    write(begun, 0, [1, 2], trackers=("trackio",))
    write(fork, 1, [2, 3], trackers=("trackio",))
    runs, _ = read_trackio("tests")
    assert {name: sorted(points) for name, points in runs.items()} == {run_id(begun): [1, 2], run_id(fork): [2, 3]}


def test_command_copies_the_rows_of_a_run_that_has_ended(begun, capsys):
    record_run(begun, load_run_config("debug"), {})
    write(begun, 0, [1, 2], trackers=())
    (begun / "status.json").write_text(json.dumps({"status": "done"}))
    assert main(["track", str(begun), "trackio", "--project", "by_hand"]) == 0
    runs, configs = read_trackio("by_hand")
    assert runs == {run_id(begun): expected_points(begun)}
    assert configs[run_id(begun)]["seed"] == 42
    assert "trackio has the rows" in capsys.readouterr().out


def test_command_refuses_a_missing_library_and_a_bad_project(begun, monkeypatch, capsys):
    record_run(begun, load_run_config("debug"), {})
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert main(["track", str(begun), "wandb"]) == 2
    assert "wandb is not installed: pip install 'megabert[wandb]'" in capsys.readouterr().err
    assert main(["track", str(begun), "wandb", "--project", "../own"]) == 2
    assert "tracker_project" in capsys.readouterr().err
