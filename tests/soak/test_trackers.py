"""Runs of fifty steps with trackio and wandb: killed and resumed, on a full disk, and without a network."""

import os
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psutil
import pytest
from support.runs import Run
from support.tracker_stores import expected_points, read_trackio, read_wandb

from megabert.observability.follower import run_id
from megabert.observability.metrics import MetricWriter, read_metrics
from megabert.settings.config.run import LoggingConfig
from megabert.training.run.status import read_status

pytestmark = pytest.mark.soak
STEPS = {"phases.0.steps": 30, "phases.1.steps": 20, "checkpoint.every_steps": 10, "seed": 5}


@pytest.fixture(autouse=True)
def trackio_dir(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    return tmp_path / "trackio"


def kill_after(run: Run, step: int, *, everything: bool) -> None:
    """Start a run, and kill -9 its process after a step; its trackers' processes too, or they see it end."""
    with ThreadPoolExecutor() as pool:
        ended = pool.submit(run.finish, timeout_s=900)
        while not any(row["step"] >= step for row in run.rows()):
            assert not ended.done(), run.output[-4000:]
            time.sleep(0.02)
        rank = psutil.Process(read_status(run.run_dir).pid)
        for victim in [rank, *(rank.children(recursive=True) if everything else [])]:
            victim.kill()
        assert ended.result() != 0


def test_killed_and_resumed_run_is_one_curve_in_both_stores(shards, tmp_path):
    run = Run(tmp_path / "run", shards, flags=STEPS)
    words = [*run.words(), "--logging.trackers", "trackio", "wandb", "--logging.tracker-project", "soak"]
    run.words = lambda: words
    kill_after(run, 14, everything=True)  # back to step 10
    kill_after(run, 37, everything=False)  # back to a checkpoint before it
    assert run.finish(timeout_s=900) == 0, run.output[-4000:]
    assert run.output.count("resuming") == 2
    assert "The run continues without it" not in run.output
    expected = expected_points(run.run_dir)
    assert sorted(expected) == list(range(1, 51))
    points, _ = read_wandb(run.run_dir)
    runs, _ = read_trackio("soak")
    assert points == expected
    assert runs == {run_id(run.run_dir): expected}
    numbers = sum(len(values) for values in expected.values())
    print(f"\nkilled after steps 14 and 37: 50 steps, {numbers} numbers, the same in metrics.jsonl, trackio and wandb")


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
    assert "full" in warning or "no space" in warning
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
