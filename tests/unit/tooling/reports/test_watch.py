import json
import math
import os
import socket
import time
from types import SimpleNamespace

import pytest
import yaml
from support.run_folders import eval_row, train_row, write_run

from megabert.foundation.text_tables import span
from megabert.tooling.reports.watch import read_overview
from megabert.training.recovery.watchdog import Beat

RUNNING = {"status": "running", "step": 2, "phase": 1, "host": socket.gethostname(), "pid": os.getpid()}


def rows(count: int) -> list[dict]:
    return [train_row(step, 8.0 - step / 10) for step in range(1, count + 1)]


def write_beat(run, rank, step, *, is_waiting, age=0):
    (run / "heartbeats").mkdir(exist_ok=True)
    then = time.time() - age
    times = {"since": then - 5, "time": then}
    beat = Beat(rank=rank, host="node1", step=step, doing="making a step", is_waiting=is_waiting, **times)
    (run / "heartbeats" / f"rank_{rank:03d}.json").write_text(json.dumps(vars(beat)))


def change_phases(run, change):
    values = yaml.safe_load((run / "config.yaml").read_text())
    values["phases"] = change(values["phases"])
    (run / "config.yaml").write_text(yaml.safe_dump(values))


def test_snapshot_says_where_a_run_stands(tmp_path):
    run = write_run(tmp_path / "run", [*rows(4), eval_row(4, 7.0)], status=RUNNING, starts=3)
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "latest").write_text("step_00000002\n")
    verdict, page = read_overview(run)
    assert verdict == "running"
    assert "step 4 of 1,360 (0%), phase1 4 of 1,300" in page
    assert "loss             7.6000 (masked-LM 7.1000)" in page
    assert "held out         masked-LM 6.5000, accuracy 25.00% at step 4" in page
    assert "restarts         2" in page
    assert "last checkpoint  step 2, " in page
    assert all(ord(letter) < 128 for letter in page)


def test_time_left_is_told_until_the_run_is_done(tmp_path):
    last = [*rows(4), {**train_row(1360, 7.0, phase=2), "phase_step": 60}]
    for status, says in ((RUNNING, "phase2 60 of 60\n"), ({"status": "done"}, "phase2 60 of 60; done\n")):
        run = write_run(tmp_path / status["status"], last, status=status)
        assert says in read_overview(run).text


def test_time_left_is_unknown_until_the_phase_has_a_row_after_its_first_step(tmp_path):
    compiling = train_row(1, 8.0) | {"perf/sequences_per_s": 1.0}
    page = read_overview(write_run(tmp_path / "first", [compiling], status=RUNNING)).text
    assert "phase1 2 of 1,300\n" in page
    assert "rate             1 sequences/s" in page
    left = span(1298 * 32 / 64 + 60 * 16 / 16)
    assert f"; about {left} left\n" in read_overview(write_run(tmp_path / "second", [compiling, *rows(2)[1:]])).text
    # The heartbeats of a status are in the second phase already.
    run = write_run(tmp_path / "next", rows(1300), status={**RUNNING, "step": 1310, "phase": 2})
    assert "phase2 10 of 60\n" in read_overview(run).text


def test_second_of_two_equal_phases_is_named(tmp_path):
    run = write_run(tmp_path / "run", [*rows(4), train_row(5, 7.0, phase=2)], status=RUNNING)
    change_phases(run, lambda phases: [phases[0]] * 2)
    assert ", phase2 " in read_overview(run).text


def test_fork_that_cut_its_first_phase_short_is_in_its_second(tmp_path):
    row = {**train_row(7, 7.0, phase=2), "phase_step": 1}  # forked at step 6; the first phase has 3 here
    run = write_run(tmp_path / "run", [row], status=RUNNING)
    change_phases(run, lambda phases: [phases[0] | {"steps": 3}, phases[1] | {"steps": 4}])
    assert "step 7 of 10 (70%), phase2 1 of 4" in read_overview(run).text


def test_new_run_without_rows_is_shown(tmp_path):
    page = read_overview(write_run(tmp_path / "run", [])).text
    assert "not started" in page
    assert "last checkpoint  none yet" in page
    assert "last row         none yet" in page


def test_run_whose_process_is_gone_was_killed(tmp_path):
    gone = {**RUNNING, "pid": 2**22 + 1}  # above Linux' greatest
    assert read_overview(write_run(tmp_path / "here", rows(1), status=gone)).verdict.startswith("killed")
    elsewhere = {**gone, "host": "another"}
    assert read_overview(write_run(tmp_path / "there", rows(1), status=elsewhere)).verdict == "running"


def test_rank_that_holds_the_others_up_is_named(tmp_path):
    run = write_run(tmp_path / "run", rows(2), status=RUNNING)
    write_beat(run, 0, 3, is_waiting=True)
    write_beat(run, 1, 3, is_waiting=False)
    assert "the others wait for rank 1 (node1), making a step at step 3" in read_overview(run).text


def test_failure_is_shown_with_its_text(tmp_path):
    failed = {"status": "failed", "exit_code": 4, "rank": 3, "error": "CheckpointError: no space"}
    page = read_overview(write_run(tmp_path / "run", rows(2), status=failed)).text
    assert "failed, exit code 4, rank 3" in page
    interrupted = {**failed, "exit_code": 130, "error": "Interrupted: SIGINT"}
    verdict = read_overview(write_run(tmp_path / "interrupted", rows(2), status=interrupted)).verdict
    assert verdict == "ended by SIGINT before it could save: the same command resumes it"
    assert "CheckpointError: no space" in page


def test_piped_output_is_one_snapshot(tmp_path, megabert):
    run = write_run(tmp_path / "run", rows(2), status=RUNNING)
    shown = megabert("watch", run).out
    assert shown.count("restarts") == 1
    assert "\x1b" not in shown


def test_terminal_is_refreshed_until_the_run_is_done(tmp_path, megabert, monkeypatch):
    run = write_run(tmp_path / "run", rows(2), status=RUNNING)

    def finish(_seconds):
        (run / "status.json").write_text('{"status": "done"}')

    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setattr("megabert.commands.watch.time", SimpleNamespace(sleep=finish))  # not other threads' sleep
    shown = megabert("watch", run).out
    assert shown.count("\x1b[H\x1b[J") == 2
    assert shown.count(": done") == 1


def test_step_is_that_of_the_heartbeats_and_the_row_says_its_own(tmp_path):
    run = write_run(tmp_path / "run", rows(1295), status=RUNNING)
    for rank, (step, age) in enumerate([(1302, 0), (1303, 0), (1350, 3600)]):  # the last is of an earlier start
        write_beat(run, rank, step, is_waiting=False, age=age)
    page = read_overview(run).text
    assert "step 1,303 of 1,360 (96%), phase2 3 of 60" in page
    assert "last row         step 1,295, " in page


def test_step_in_which_a_run_was_stopped_is_not_counted(tmp_path):
    run = write_run(tmp_path / "run", rows(4), status={**RUNNING, "status": "stopped", "step": 4})
    write_beat(run, 0, 5, is_waiting=False)
    assert "step 4 of 1,360" in read_overview(run).text


def test_rates_come_from_one_row_and_a_slow_one_is_not_zero(tmp_path):
    rates = [(4.0, 232.0), (0.4, 23.2), (0.1, 90.0)]  # the row in the middle is typical, the last one is not
    written = [
        row | {"perf/sequences_per_s": sequences, "perf/tokens_per_s": tokens}
        for row, (sequences, tokens) in zip(rows(4)[1:], rates, strict=True)
    ]
    page = read_overview(write_run(tmp_path / "run", written, status=RUNNING)).text
    assert "rate             0.4 sequences/s, 23 tokens/s" in page


@pytest.mark.parametrize(
    ("losses", "curve"),
    [
        ([math.nan, 9.0, 8.0], "|?@ | nan to 8.000"),
        ([9.0, math.inf, 8.0], "|@? | 9.000 to 8.000"),
        ([math.inf, math.inf], "|??| inf to inf"),
    ],
)
def test_losses_that_are_not_finite_leave_the_curve_of_the_others(losses, curve, tmp_path):
    written = [row | {"train/mlm_loss": loss} for row, loss in zip(rows(4)[1:], losses, strict=False)]
    assert curve in read_overview(write_run(tmp_path / "run", written, status=RUNNING)).text
