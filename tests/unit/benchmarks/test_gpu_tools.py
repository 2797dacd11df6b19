"""Waits of the host, and NVIDIA's tools, as the GPU runbook reads them: with stand-ins for the GPU and the programs."""

import subprocess
import sys
import time
import warnings
from pathlib import Path
from unittest import mock

import pytest
import torch
from support.processes import has_ended, wait_for

from benchmarks.gpu import nsight, resume, waits
from benchmarks.gpu.resume import counting_waits
from benchmarks.gpu.rows import Rows
from benchmarks.gpu.runs import run, words
from benchmarks.gpu.sizes import TINY

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def rows_of(tmp_path):
    return lambda settings, seconds=60.0: Rows(tmp_path / "probe.json", settings, deadline=time.monotonic() + seconds)


@pytest.mark.parametrize(
    ("reads_a_number", "per_step", "waits_by"), [(False, 1, "event 3"), (True, 3, "event 3, device 3, test_gpu_tools")]
)
@pytest.mark.filterwarnings("ignore:called a synchronizing")  # of the steps that are not counted
def test_waits_of_each_kind_are_counted_by_step(monkeypatch, tmp_path, reads_a_number, per_step, waits_by):

    modes = []
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda.Event, "synchronize", lambda event: None)

    class Trainer:
        state = mock.Mock(step=0)

        def _step(self):
            torch.cuda.Event.synchronize(None)
            if reads_a_number:
                torch.cuda.synchronize()
                warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
            return "result"

    monkeypatch.setattr(waits, "Trainer", Trainer)
    waits.count_in_steps(tmp_path / "waits.json")
    for Trainer.state.step in range(20):
        assert Trainer()._step() == "result"
    row = resume.waits_row(tmp_path / "waits.json")
    assert (row["per_step"], row["passes"]) == (per_step, per_step == 1)
    assert row["waits"].startswith(waits_by)
    assert modes == ["warn", "default"] * 3


def test_command_that_counts_waits_is_the_same_one_otherwise(tmp_path):
    command = counting_waits(words("pretrain", "--version"), tmp_path / "waits.json")
    assert command[1:] == ["-m", "benchmarks.gpu.waits", str(tmp_path / "waits.json"), "pretrain", "--version"]


NCU = """#!/bin/sh
case "$1" in
--import) printf '==PROF== text\n"ID","Kernel Name","gpu__time_duration.sum","launch__registers_per_thread"\n'
          printf '"","","us","register/thread"\n"0","attention_backward","1,023.5","255"\n' ;;
*) for last; do case "$before" in --export) touch "$last" ;; esac; before=$last; done ;;
esac
"""
SANITIZER = "#!/bin/sh\necho ========= ERROR SUMMARY: {} errors\n"


def test_nsight_reads_its_tools_and_says_which_are_not_there(rows_of, monkeypatch, tmp_path):
    device, bin_folder = torch.device("cpu"), tmp_path / "bin"
    monkeypatch.setattr(nsight, "FOLDERS", ())
    monkeypatch.setenv("PATH", f"{bin_folder}:/usr/bin:/bin")
    rows = rows_of({}, seconds=60.0)
    rows.path = tmp_path / "rows" / "nsight.json"
    rows.path.parent.mkdir()
    nsight.measure(rows, device, TINY)
    assert {row["not_run"] for row in rows.rows.values()} == {
        "RuntimeError: ncu is not on this machine",
        "RuntimeError: compute-sanitizer is not on this machine",
    }
    bin_folder.mkdir()
    for name, program in (("ncu", NCU), ("compute-sanitizer", SANITIZER.format(3))):
        (bin_folder / name).write_text(program)
        (bin_folder / name).chmod(0o755)
    rows.rows.clear()
    nsight.measure(rows, device, TINY)
    *profiles, check = rows.rows.values()
    assert (check["errors"], check["passes"]) == (3, False)
    assert len(profiles) == 5
    assert (profiles[0]["time (us)"], profiles[0]["registers (register/thread)"]) == (1023.5, 255.0)
    assert (tmp_path / "runs" / "nsight" / "attention_backward_512.ncu-rep").exists()


def test_command_that_is_killed_at_its_limit_leaves_nothing_running(tmp_path):
    command = ["sh", "-c", f"sleep 100 & echo $! > {tmp_path}/pid; wait"]
    with pytest.raises(subprocess.TimeoutExpired):
        run(command, tmp_path / "log", 2.0)
    pid = int((tmp_path / "pid").read_text())
    wait_for(lambda: has_ended(pid), 5)  # a killed one may take a moment


PART = """
import signal
from pathlib import Path
from benchmarks.gpu.runs import run
signal.signal(signal.SIGTERM, signal.default_int_handler)  # as the runbook does
run(["sh", "-c", "echo $$ > {folder}/pid; exec sleep 100"], Path("{folder}/log"), 100)
"""
RUNBOOK = """
import subprocess, sys
import benchmarks.gpu.__main__ as runbook
runbook.use_sites = lambda arguments: None  # wheels that this checkout may have
start = subprocess.Popen
runbook.subprocess.Popen = lambda command, **options: start([sys.executable, "-c", {part!r}], **options)
sys.argv[1:] = ["--parts", "products", "--tiny", "--output", "{folder}", "--work", "{folder}"]
runbook.main()
"""


def test_runbook_that_is_ended_ends_its_part_and_what_that_has_started(tmp_path):
    program = RUNBOOK.format(part=PART.format(folder=tmp_path), folder=tmp_path)
    runbook = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.DEVNULL)
    pid_file = tmp_path / "pid"
    wait_for(lambda: runbook.poll() is not None or (pid_file.exists() and pid_file.read_text()), 100)
    pid = int(pid_file.read_text())
    assert not has_ended(pid)
    runbook.terminate()
    runbook.wait(30)
    wait_for(lambda: has_ended(pid), 5)
