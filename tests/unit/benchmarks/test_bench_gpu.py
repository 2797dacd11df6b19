"""The GPU runbook on a CPU: rows are saved, resumed and merged; one part runs end to end on tiny shapes."""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def rows_of(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks.gpu.rows import Rows

    return lambda settings, seconds=60.0: Rows(tmp_path / "probe.json", settings, seconds=seconds)


def test_rows_are_resumed_and_failed_ones_measured_again(rows_of):
    def fail():
        raise ValueError("no such thing")

    rows = rows_of({"device": "a"})
    rows.measure("good", lambda: {"ms": 1.0})
    assert rows.measure("bad", fail)["error"] == "ValueError: no such thing"
    assert "not_run" in rows.measure("peer", fail, is_peer=True)
    resumed = rows_of({"device": "a"})
    assert resumed.measure("good", fail)["ms"] == 1.0
    assert resumed.measure("bad", lambda: {"ms": 2.0})["ms"] == 2.0
    assert rows_of({"device": "b"}).rows == {}  # another machine's rows are not mixed in


def test_no_row_starts_after_the_deadline(rows_of):
    rows = rows_of({}, seconds=-1.0)
    assert rows.measure("late", lambda: {"ms": 1.0}) is None
    assert rows.is_complete is False


def test_reversed_batch_holds_the_same_sequences(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks.gpu.batches import random_batch

    batch = random_batch(48, 16, 90, seed=3)
    turned = batch.reversed()
    assert turned.input_ids_T.view(3, 16).flip(0).flatten().equal(batch.input_ids_T)
    for some in (batch, turned):
        assert (some.input_ids_T[some.masked_positions_M] == 4).all()
    pairs = [sorted(zip(b.masked_positions_M % 16, b.masked_ids_M, strict=True)) for b in (batch, turned)]
    assert [(int(a), int(b)) for a, b in pairs[0]] == [(int(a), int(b)) for a, b in pairs[1]]


@pytest.fixture
def runbook(monkeypatch, tmp_path):
    """The program as a module, and its arguments for a part that needs nothing."""
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks.gpu import __main__ as module

    return module, argparse.Namespace(output=tmp_path, tiny=True)


def test_part_without_its_packages_says_what_is_lacking(runbook, monkeypatch):
    module, arguments = runbook
    monkeypatch.setitem(module.NEEDS, "parity", ("no_such_package",))
    assert "not importable here: no_such_package (--wheels" in module.start_part("parity", arguments, 60.0)


def test_part_that_outlasts_its_time_is_ended_and_reported(runbook, monkeypatch):
    module, arguments = runbook
    monkeypatch.setattr(module, "GRACE_S", -0.9)  # of a second: too short for Python's start
    outcome = module.start_part("parity", arguments, 1.0)
    assert outcome.startswith("stopped after")
    report = module.merge(arguments.output, {"parity": outcome}, True)
    assert report["parts"]["parity"] == {"outcome": outcome, "is_complete": False, "rows": {}}
    assert outcome in (arguments.output / "bench_gpu.md").read_text()


def test_rows_of_other_settings_are_not_reported(runbook):
    module, arguments = runbook
    other = {"settings": {"device": "another"}, "is_complete": True, "rows": {"row": {"ms": 1.0}}}
    (arguments.output / "ops.json").write_text(json.dumps(other))
    assert module.merge(arguments.output, {}, True)["parts"] == {}


def test_all_parts_fit_nine_minutes(runbook):
    module, _ = runbook
    assert sum(module.LIMITS_S.values()) + module.GRACE_S <= 540


def test_parity_part_runs_on_a_cpu(tmp_path):
    command = [sys.executable, "-m", "benchmarks.gpu", "--tiny", "--parts", "parity", "--output", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    report = json.loads((tmp_path / "bench_gpu.json").read_text())
    rows = report["parts"]["parity"]["rows"]
    assert len(rows) > 20
    assert all(row["passes"] for row in rows.values())
    assert "| row |" in (tmp_path / "bench_gpu.md").read_text()
