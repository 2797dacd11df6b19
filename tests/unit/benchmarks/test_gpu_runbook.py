"""The GPU runbook as a program: parts in processes of their own, their time, the wheels that they need."""

import argparse
import importlib.metadata
import json
import math
import os
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from unittest import mock

import pytest

from benchmarks.gpu import __main__ as runbook
from benchmarks.gpu import trainer, wheels
from benchmarks.gpu.report import write_report
from megabert.data.packing import shape_for
from megabert.settings.config.loading import load_run_config
from megabert.tokens.shards.folder import InstanceStatistics

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def arguments(tmp_path):
    """Those of the program."""
    return argparse.Namespace(output=tmp_path, work=tmp_path, tiny=True)


def report_of(arguments, outcomes):
    """Write the report of what the work folder holds, and return it and the problems."""

    settings = runbook.settings(arguments.tiny)
    problems = write_report(arguments.output, runbook.rows_folder(arguments), settings, outcomes, list(runbook.PARTS))
    return json.loads((arguments.output / "bench_gpu.json").read_text()), problems


def test_numba_is_imported_before_a_part_that_needs_it_starts(arguments, monkeypatch, tmp_path):
    assert runbook.is_importable("numba")
    (tmp_path / "numba.py").write_text("raise ImportError('Numba needs NumPy 2.4 or less')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert "not importable here: numba (" in runbook.start_part("trainer", arguments, 60.0, lambda: None)


@pytest.fixture
def run_parts(monkeypatch, tmp_path):
    """Return a function that runs the program with parts of some seconds, and returns what each was given."""
    now, given = [100.0], []
    monkeypatch.setattr(runbook, "time", argparse.Namespace(monotonic=lambda: now[0], time=lambda: now[0]))
    monkeypatch.setattr(runbook, "use_sites", lambda arguments: None)
    monkeypatch.setattr(runbook.os, "environ", dict(runbook.os.environ))

    def take(seconds):
        now[0] += seconds
        return {}

    def run(*words, import_s=0.0, part_s=0.0, start=None):
        start = start or (lambda part, arguments, seconds, report: given.append(seconds) or take(part_s) or "done")
        monkeypatch.setattr(runbook, "settings", lambda is_tiny: take(import_s))
        monkeypatch.setattr(runbook, "start_part", start)
        monkeypatch.setattr(sys, "argv", ["x", *words, "--output", str(tmp_path), "--work", str(tmp_path)])
        runbook.main()
        return given

    return run


def test_first_import_of_torch_costs_the_first_part_nothing(run_parts):
    assert run_parts("--parts", "products", import_s=25.0) == [runbook.PARTS["products"].limit_s]


def test_part_that_outlasts_its_time_is_ended_and_reported(arguments, monkeypatch):
    monkeypatch.setattr(runbook, "GRACE_S", -0.9)  # of a second: too short for Python's start
    outcome = runbook.start_part("parity", arguments, 1.0, lambda: None)
    assert outcome.startswith("stopped after")
    report, problems = report_of(arguments, {"parity": outcome})
    assert report["parts"]["parity"] == {"outcome": outcome, "is_complete": False, "rows": {}}
    assert problems == ["parity: not complete"]
    assert outcome in (arguments.output / "bench_gpu.md").read_text()


def test_part_whose_device_broke_goes_on_in_a_new_process_without_what_failed(arguments, monkeypatch):
    codes, more = iter([77, 77, 0]), []
    monkeypatch.setattr(runbook, "wait_for", lambda *given: more.append(given[3]) or next(codes))
    assert runbook.start_part("parity", arguments, 60.0, lambda: None) == "done"
    assert more == [[], ["--keep-failed"], ["--keep-failed"]]


def test_process_whose_device_broke_frees_nothing_and_keeps_its_code(tmp_path):
    program = """
import atexit, os, sys
import benchmarks.gpu.__main__ as runbook
from benchmarks.gpu import products
from benchmarks.gpu.rows import BROKEN

def measure(*_):
    raise SystemExit(BROKEN)

products.measure = measure
atexit.register(os.abort)  # as torch may, where memory of the device is freed
sys.argv[1:] = ["--in-this-process", "products", "--tiny", "--deadline", "1e9", "--work", sys.argv[1]]
runbook.main()
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], cwd=ROOT, check=False, timeout=100)
    assert done.returncode == 77


def test_wheels_are_unpacked_once_each_folder_beside_the_others(monkeypatch, tmp_path):
    wheels, work = tmp_path / "wheels", tmp_path / "work"
    wheels.mkdir()
    (wheels / "one-1-py3-none-any.whl").touch()
    (tmp_path / "two.py").write_text("")
    with tarfile.open(wheels / "two.tar.xz", "w:xz") as archive:
        archive.add(tmp_path / "two.py", "two.py")
    installed = []

    def pip(command, *, check):
        installed.append(command[-1])
        Path(command[command.index("--target") + 1]).mkdir(parents=True)

    monkeypatch.setattr(runbook.subprocess, "run", pip)
    for _ in range(2):
        runbook.unpack(wheels, work)
    assert installed == [str(wheels / "one-1-py3-none-any.whl")]
    assert (work / "sites" / "wheels" / "two.py").exists()
    (wheels / "three-1-py3-none-any.whl").touch()
    runbook.unpack(wheels, work)
    assert len(installed) == 2


def test_rows_of_other_settings_are_not_reported(arguments):
    other = {"settings": {"device": "another"}, "is_complete": True, "rows": {"row": {"ms": 1.0}}}
    (runbook.rows_folder(arguments) / "ops.json").write_text(json.dumps(other))
    assert report_of(arguments, {})[0]["parts"] == {}


def test_two_commands_and_the_start_of_the_machine_fit_a_quarter_of_an_hour():
    def seconds(parts, of):
        lanes = [sum(getattr(runbook.PARTS[part], of) for part in parts if part in lane) for lane in runbook.UNTIMED]
        timed = set(parts).difference(*runbook.UNTIMED)
        return max(lanes) + sum(getattr(runbook.PARTS[part], of) for part in timed)

    assert list(runbook.COMMANDS) == ["1", "2"]
    # The start of the machine, two imports of torch, the installation, and two transfers take 200 s.
    assert sum(seconds(parts, "estimate_s") for parts in runbook.COMMANDS.values()) + 200 <= 900
    for parts in runbook.COMMANDS.values():
        assert seconds(parts, "limit_s") + runbook.GRACE_S <= 540
    assert runbook.COMMANDS["2"][-1] == "speedrun"


def test_parts_without_times_run_at_the_same_time_and_the_timed_ones_after_them(run_parts, monkeypatch, tmp_path):
    events = []

    class Child:
        def __init__(self, command, **options):
            events.append(command[command.index("--parts") + 1])

        def wait(self):
            events.append("ended")

        def poll(self):
            return 0

    def start(part, arguments, seconds, report):
        events.append(part)
        return "done"

    monkeypatch.setattr(runbook.subprocess, "Popen", Child)
    run_parts("--parts", "1", start=start)
    assert events == ["resume,agreement", "parity", "repeats", "ended", "tuning", "training", "products"]


def test_no_part_is_begun_without_the_wheels(run_parts, monkeypatch):
    monkeypatch.setattr(runbook, "is_importable", lambda name: name != "pydantic")
    with pytest.raises(SystemExit, match=r"not importable here: pydantic\. Bring build/bench-gpu-wheels along"):
        run_parts("--parts", "1")
    assert run_parts("--parts", "smoke") == [runbook.PARTS["smoke"].limit_s]


@pytest.mark.parametrize(("first_takes", "second_has"), [(10.0, 90 + 50), (200.0, 50)])
def test_time_that_a_part_leaves_is_the_next_ones_alone(monkeypatch, run_parts, first_takes, second_has):
    monkeypatch.setattr(runbook, "PARTS", {"parity": mock.Mock(limit_s=100), "ops": mock.Mock(limit_s=50)})
    assert run_parts(part_s=first_takes) == [100, second_has]


def test_part_shares_the_clock_and_the_session_of_the_runbook(arguments, monkeypatch):
    started, popen = [], subprocess.Popen

    def start(command, **options):
        child = popen([sys.executable, "-c", "import time; time.sleep(100)"], **options)
        started.append((command, os.getpgid(child.pid), child.pid, os.getsid(child.pid)))
        return child

    monkeypatch.setattr(runbook.subprocess, "Popen", start)
    monkeypatch.setattr(runbook, "GRACE_S", 0.1)
    end = time.monotonic()
    assert runbook.wait_for("parity", arguments, end, [], lambda: None) is None
    command, group, pid, session = started[0]
    assert float(command[command.index("--deadline") + 1]) == end  # however long its imports take
    assert (group, session) == (pid, os.getsid(0))


def test_readme_has_each_part_with_its_estimate_and_a_part_for_all_that_a_card_has_to_show():
    readme = (ROOT / "benchmarks" / "gpu" / "README.md").read_text()
    tables = [[cell.strip() for cell in line.split("|")] for line in readme.splitlines() if line.startswith("|")]
    parts = [(row[1], row[2].strip("`"), row[3]) for row in tables if len(row) > 6 and row[2].startswith("`")]
    estimates = {name: str(runbook.PARTS[name].estimate_s) for name in runbook.PARTS}
    assert {name: estimate for _, name, estimate in parts} == estimates
    by_command = [(command, name) for command, name, _ in parts if command]
    assert by_command == [(number, name) for number, names in runbook.COMMANDS.items() for name in names]
    shown = readme.partition("## What a card has to show")[2].partition("\n## ")[0]
    rows = [line.split("|") for line in shown.splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= 9
    for row in rows:
        assert row[2].strip("` ") in runbook.PARTS, row


def test_logs_of_parts_are_one_file_of_the_results_and_printed_as_well(arguments, monkeypatch, tmp_path, capfd):
    program = "import pathlib, sys; pathlib.Path(sys.argv[1], 'run').mkdir(); "
    program += "pathlib.Path(sys.argv[1], 'run', 'x.log').write_text('deep'); sys.exit('no such kernel')"
    popen = subprocess.Popen

    def start(command, **options):
        return popen([sys.executable, "-c", program, str(tmp_path / "runs")], **options)

    monkeypatch.setattr(runbook.subprocess, "Popen", start)
    assert runbook.start_part("parity", arguments, 60.0, lambda: None) == "ended with exit code 1"
    assert "no such kernel" in capfd.readouterr().out
    (tmp_path / "runs" / "run" / "weights.safetensors").write_text("large")
    output = tmp_path / "output"
    output.mkdir()
    for _ in range(2):  # after each part
        runbook.keep(tmp_path / "runs", output)
    assert [path.name for path in output.iterdir()] == ["logs.tar.gz"]
    with tarfile.open(output / "logs.tar.gz") as content:
        texts = {name: content.extractfile(name).read().decode() for name in content.getnames()}
    assert texts == {"parity.log": "no such kernel\n", "run/x.log": "deep"}
    runbook.keep(tmp_path / "runs", tmp_path / "absent")
    assert "not written" in capfd.readouterr().err


def test_trainer_should_need_its_estimate_at_most():
    assert 0.8 * runbook.PARTS["trainer"].estimate_s <= trainer.predicted_s() <= runbook.PARTS["trainer"].estimate_s


SHIPPED = {
    128: InstanceStatistics(rows=5023, tokens=603_388, masked_tokens=89_732, max_seq_length=128, max_masked=20),
    512: InstanceStatistics(rows=1597, tokens=726_864, masked_tokens=109_272, max_seq_length=512, max_masked=77),
}
"""Totals of the shards that `python -m benchmarks.gpu.shards` makes of the shipped corpus."""


def test_phases_of_the_recipe_are_those_of_the_rows():
    config = load_run_config(str(trainer.RECIPE), flags={"data": {"path": "x"}})
    budget, micro_steps = int(config.micro_batch_tokens), []
    for phase in config.phases:
        totals, count = SHIPPED[phase.max_seq_length], phase.global_batch_size
        shape = shape_for(totals, global_batch_size=count, world_size=1, micro_batch_tokens=budget)
        micro_steps.append(math.ceil(count * totals.tokens / totals.rows / shape.tokens))
    for name, phase, count in zip(trainer.PHASES, config.phases, micro_steps, strict=True):
        assert name == f"length {phase.max_seq_length} megabert pretrain, {count} micro-steps a step"
    assert micro_steps == [8, 8]


def test_wheels_are_of_the_versions_here_and_small(monkeypatch, tmp_path):
    commands = []

    def pip(command, *, check, env=None):
        commands.append(command)
        (tmp_path / "wheels" / f"{len(commands)}.whl").write_bytes(b"0" * 500_000)

    monkeypatch.setattr(wheels.subprocess, "run", pip)
    assert wheels.collect(tmp_path / "wheels", "3.12") == 1.0
    assert f"pydantic=={importlib.metadata.version('pydantic')}" in commands[0]
    assert commands[0][commands[0].index("--python-version") + 1] == "3.12"
    assert f"deepspeed=={importlib.metadata.version('deepspeed')}" in commands[1]


def test_a_part_without_the_wheels_finds_their_folder(arguments, monkeypatch, tmp_path):
    unpacked = []
    monkeypatch.setattr(runbook, "WHEELS", tmp_path)
    monkeypatch.setattr(runbook, "unpack", lambda wheels, work: unpacked.append(wheels))
    monkeypatch.setenv("PYTHONPATH", "")
    arguments.wheels = None
    runbook.use_sites(arguments)
    assert unpacked == [tmp_path]


def test_wheels_of_another_python_cost_no_part_that_needs_none(arguments, monkeypatch, tmp_path, capfd):
    arguments.wheels, arguments.work = tmp_path / "wheels", tmp_path / "work"
    arguments.wheels.mkdir()
    (arguments.wheels / "probe-1.0-cp27-cp27m-manylinux2014_x86_64.whl").touch()
    monkeypatch.setenv("PYTHONPATH", "")
    runbook.use_sites(arguments)
    said = capfd.readouterr()
    assert "not a supported wheel" in said.err
    assert "not installed; Python here is" in said.out
    assert not list(arguments.work.glob("sites/*/.complete"))
