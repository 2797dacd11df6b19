"""SIGTERM, SIGUSR1 and Ctrl-C to one rank: all ranks save and exit 75, and the same command resumes bit for bit."""

import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
from dataclasses import replace

import pytest
from forked.client import environment_of_commands
from support.runs import Run, assert_equal_runs, kill_everything, ranks_of

LAUNCHER_CODES = {"deepspeed": 75, "torchrun": 1}  # torchrun hides the ranks' codes: status.json has the verdict


def status_of(run: Run) -> dict:
    return json.loads((run.run_dir / "status.json").read_text())


def start_and_signal(run: Run, step: int, rank: int, signals: list[signal.Signals]) -> int:
    """Start, signal one rank after a step, return the launcher's exit code once nothing of the run lives."""
    process = run.start()
    try:
        run.wait_for_step(step, process)
        assert status_of(run)["status"] == "running"
        ranks = ranks_of(process)
        for number in signals:
            os.kill(ranks[rank].pid, number)
        code = process.wait(60)
        for each in ranks:
            each.wait(60)
        return code
    finally:
        kill_everything(process)


def check_stopped_run_equals(uninterrupted_run: Run, run: Run, step, rank, signals, *, resumed_by=None) -> None:
    """Stop a run by signals to one rank, start it again, perhaps by another launcher, and compare two complete runs."""
    assert start_and_signal(run, step, rank, signals) == LAUNCHER_CODES[run.launcher], run.output[-4000:]
    verdict = status_of(run)
    assert (verdict["status"], verdict["exit_code"], verdict["error"]) == ("stopped", 75, None)
    # Of several pending signals the kernel gives each to any thread: which handler runs first is not determined.
    assert any(f"stopped by {number.name} on rank {rank} at step" in run.output for number in signals)
    saved = max(run.losses())
    assert step <= saved == verdict["step"] < 13
    assert (run.run_dir / "checkpoints" / "latest").read_text().strip() == f"step_{saved:08d}"
    before = run.rows()
    replace(run, launcher=resumed_by or run.launcher).finish_well()
    assert run.rows()[: len(before)] == before, "no step was repeated"
    assert_equal_runs(run, uninterrupted_run)
    assert (status_of(run)["status"], status_of(run)["step"]) == ("done", 13)


def test_stopped_run_resumes_bit_for_bit(uninterrupted_run, shards, tmp_path):
    run = Run(tmp_path / "run", shards, ranks=2, launcher="torchrun")
    signals = [signal.SIGUSR1, signal.SIGINT]
    check_stopped_run_equals(uninterrupted_run, run, step=4, rank=1, signals=signals, resumed_by="forked")


def test_signal_during_start_up_stops_after_the_first_steps(shards, tmp_path):
    run = Run(tmp_path / "run", shards)
    process = run.start()
    try:
        run.wait_for_signal_handlers(process)
        os.kill(process.pid, signal.SIGUSR1)
        assert process.wait(60) == 75, run.output[-4000:]
        assert "megabert: SIGUSR1 received: this ends after " in run.output
    finally:
        kill_everything(process)
    assert status_of(run)["status"] == "stopped"
    assert 1 <= status_of(run)["step"] <= 2


def test_sigterm_ends_ranks_that_have_not_met(shards, tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
    variables = {**environment_of_commands(), "RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", **place}
    run = Run(tmp_path / "run", shards)
    process = subprocess.Popen(run.command(), stderr=subprocess.PIPE, text=True, env=variables, start_new_session=True)
    try:
        assert any("rank 0 waits for rank 1 of 2" in line for line in process.stderr)
        os.kill(process.pid, signal.SIGTERM)
        rest = process.communicate(timeout=60)[1]
    finally:
        kill_everything(process)
    assert (process.returncode, "ended by SIGTERM" in rest) == (143, True), rest
    assert not run.run_dir.exists()


def times_of(run_dir) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in run_dir.rglob("*") if path.name != ".lock"}


def test_error_is_recorded_and_a_refusal_changes_nothing(uninterrupted_run, shards, tmp_path):
    shutil.copytree(uninterrupted_run.run_dir, tmp_path / "run")
    run = Run(tmp_path / "run", shards)
    done = status_of(run)
    assert (done["status"], done["step"], done["exit_code"]) == ("done", 13, 0)
    before = times_of(run.run_dir)
    assert Run(run.run_dir, shards, flags={"phases.0.steps": 3}).finish() == 4
    assert times_of(run.run_dir) == before
    for manifest in (run.run_dir / "checkpoints").glob("step_*/manifest.json"):
        manifest.write_text("{")
    assert run.finish() == 4, run.output[-4000:]
    failed = status_of(run)
    assert (failed["status"], failed["exit_code"]) == ("failed", 4)
    assert "every checkpoint is damaged" in failed["error"]


@pytest.mark.soak
@pytest.mark.parametrize("launcher", LAUNCHER_CODES)
@pytest.mark.parametrize(("step", "rank"), itertools.product(range(1, 11), (0, 1)))
def test_every_stop_resumes_bit_for_bit(uninterrupted_run, shards, tmp_path, launcher, step, rank):
    signals = [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT][step % 2 :]
    run = Run(tmp_path / "run", shards, ranks=2, launcher=launcher)
    check_stopped_run_equals(uninterrupted_run, run, step, rank, signals)
