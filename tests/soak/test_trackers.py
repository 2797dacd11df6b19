"""Runs of fifty steps with trackio and wandb: killed and resumed, on a full disk, and without a network."""

import os
import socket
import subprocess
import time
from contextlib import contextmanager

import pytest
from support.bundled_corpus import build_shards, small_corpus
from support.runs import Run, assert_equal_runs, kill_everything, ranks_of
from support.tracker_stores import expected_points, read_trackio, read_wandb

from megabert.config.run import LoggingConfig
from megabert.observability.metrics import MetricWriter, read_metrics
from megabert.observability.trackers.process import run_id

pytestmark = pytest.mark.soak
STEPS = {"phases.0.steps": 30, "phases.1.steps": 20, "checkpoint.every_steps": 10, "seed": 5}


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    return build_shards(small_corpus(folder), folder / "shards")


@pytest.fixture(autouse=True)
def trackio_dir(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    return tmp_path / "trackio"


@pytest.mark.parametrize("victim", ["everything", "rank 0"])
def test_killed_and_resumed_run_is_one_curve_in_both_stores(shards, tmp_path, victim):
    run = Run(tmp_path / "run", shards, ranks=2, launcher="torchrun", flags={**STEPS, "logging.trackers": None})
    tracked = [*run.words(), "--logging.trackers", "trackio", "wandb", "--logging.tracker-project", "soak"]
    run.words = lambda: tracked
    for step in (14, 37):  # the checkpoints before are those of steps 10 and 30
        process = run.start()
        run.wait_for_step(step, process)
        if victim == "everything":
            kill_everything(process)
        else:
            ranks_of(process)[0].kill()
            process.wait(120)
    run.finish_well()
    uninterrupted = Run(tmp_path / "uninterrupted", shards, ranks=2, launcher="torchrun", flags=STEPS)
    uninterrupted.finish_well()
    assert_equal_runs(run, uninterrupted)
    assert "The run continues without it" not in run.output
    expected = expected_points(run.run_dir)
    assert sorted(expected) == list(range(1, 51))
    points, _ = read_wandb(run.run_dir)
    runs, _ = read_trackio("soak")
    assert points == expected
    assert runs == {run_id(run.run_dir): expected}
    numbers = sum(len(values) for values in expected.values())
    print(
        f"\n{victim} killed after steps 14 and 37: 50 steps, {numbers} numbers, alike in metrics.jsonl, trackio, wandb"
    )


@contextmanager
def small_disk(folder, size):
    folder.mkdir(parents=True)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=False).returncode:
        pytest.skip("this machine does not let us mount a tmpfs")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def write(run_dir, name, *, steps, pause_s, mode="offline"):
    logging = LoggingConfig(trackers=(name,), tracker_project="soak", tracker_mode=mode)
    begun = time.monotonic()
    writer = MetricWriter(run_dir, resumed_step=0, logging=logging)
    for step in range(1, steps + 1):
        writer.write(step, {f"train/loss_{i}": step + i / 7 for i in range(20)})
        time.sleep(pause_s)
    writer.close()
    return time.monotonic() - begun


def warnings_in(caplog):
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a tmpfs to fill needs root")
@pytest.mark.parametrize("name", ["trackio", "wandb"])
def test_full_disk_of_a_tracker_is_one_warning(tmp_path, trackio_dir, caplog, name):
    run_dir = tmp_path / "run"
    with small_disk({"trackio": trackio_dir, "wandb": run_dir / "wandb"}[name], "400k"):
        write(run_dir, name, steps=2000, pause_s=0.01)
    assert len(read_metrics(run_dir)) == 2000
    (warning,) = warnings_in(caplog)
    assert "full" in warning
    print(f"\n{warning}")


@pytest.mark.parametrize("name", ["trackio", "wandb"])
def test_tracker_without_a_network_is_one_warning(tmp_path, monkeypatch, caplog, name):
    with socket.socket() as closed:  # bound, and nobody listens: each connection is refused
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        monkeypatch.setenv("TRACKIO_SERVER_URL", f"{url}?write_token=none")
        monkeypatch.setenv("WANDB_BASE_URL", url)
        monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
        seconds = write(tmp_path, name, steps=100, pause_s=0.01, mode="online")
    assert len(read_metrics(tmp_path)) == 100
    (warning,) = warnings_in(caplog)
    print(f"\n{seconds:.0f} s: {warning}")
