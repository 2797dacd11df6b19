"""Rows of the GPU runbook on a CPU, waits of the host, and NVIDIA's tools, with stand-ins for GPU and programs."""

import contextlib
import subprocess
import sys
import time
import warnings
from pathlib import Path
from unittest import mock

import pytest
import torch
from support.processes import has_ended, wait_for

from benchmarks.gpu import clock, nsight, ops, peers, resume, waits
from benchmarks.gpu import rows as module
from benchmarks.gpu.batches import random_batch
from benchmarks.gpu.products import in_fp8
from benchmarks.gpu.resume import counting_waits
from benchmarks.gpu.rows import Rows
from benchmarks.gpu.runs import run, words
from benchmarks.gpu.sizes import TINY
from benchmarks.gpu.training import MegabertStep, model_config


@pytest.fixture
def rows_of(tmp_path):
    return lambda settings, seconds=600.0: Rows(tmp_path / "probe.json", settings, deadline=time.monotonic() + seconds)


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
    rows.finish()
    assert rows.is_complete is False


def test_device_that_no_longer_answers_ends_the_process_and_keeps_the_row(rows_of, monkeypatch):
    def fail():
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(module, "is_broken", lambda device: True)
    with pytest.raises(SystemExit) as ended:
        rows_of({}).measure("bad", fail)
    assert ended.value.code == module.BROKEN
    monkeypatch.setattr(module, "is_broken", lambda device: False)
    after = module.Rows(rows_of({}).path, {}, deadline=time.monotonic() + 60.0, keep_failed=True)
    assert "illegal memory access" in after.measure("bad", lambda: {"ms": 1.0})["error"]  # it would break it again
    assert after.measure("good", lambda: {"ms": 1.0})["ms"] == 1.0


def test_capture_that_failed_ends_the_process_and_says_what_broke_it(rows_of, monkeypatch):
    @contextlib.contextmanager
    def graph(_):
        try:
            yield
        finally:
            raise RuntimeError("operation failed due to a previous error during capture")

    for name in ("Stream", "current_stream", "stream", "CUDAGraph"):
        monkeypatch.setattr(torch.cuda, name, mock.MagicMock())
    monkeypatch.setattr(torch.cuda, "graph", graph)
    example, options = random_batch(48, 16, 90, seed=3), {"backend": "auto", "dtype": torch.float32}
    step = MegabertStep(model_config(TINY), example, device=torch.device("cpu"), **options)
    waiting = RuntimeError("operation not permitted when stream is capturing")
    monkeypatch.setattr(step, "eager", mock.Mock(side_effect=[None, None, None, waiting]))
    rows = rows_of({})
    with pytest.raises(SystemExit) as ended:
        rows.measure("graph", step.capture)
    assert ended.value.code == module.BROKEN
    assert "operation not permitted when stream is capturing" in rows.rows["graph"]["error"]


def test_peers_mask_is_made_once_and_not_in_its_time(rows_of, monkeypatch):
    masks = []
    monkeypatch.setattr(ops, "create_block_mask", lambda *_, **__: masks.append(0))
    monkeypatch.setattr(ops, "flex_attention", lambda q, k, v, block_mask: q + k + v)
    monkeypatch.setattr(torch, "compile", lambda op, **_: op)
    rows = rows_of({})
    measured = ops.Ops(rows, torch.device("cpu"), TINY)
    measured.turn = ops.COMPILED
    measured.rotary_attention(TINY.rotary_lengths[0])
    assert [("ms" in row) for name, row in rows.rows.items() if "flex_attention" in name] == [True, True]
    assert len(masks) == 1


@pytest.mark.parametrize("name", ["ops", "peers"])
def test_our_ops_and_sdpa_without_dropout_are_one_part_and_other_programs_another(rows_of, monkeypatch, name):
    rows = rows_of({})
    monkeypatch.setattr(rows, "measure", lambda name, function, is_peer=False: rows.rows.setdefault(name, {}))
    {"ops": ops, "peers": peers}[name].measure(rows, torch.device("cpu"), TINY)
    names = [row for row in rows.rows if not row.startswith(("ceiling", "length"))]
    who = {next(who for who in WHO if row.endswith(f" {who}")) for row in names}
    ours = {"megabert", "sdpa flash, no dropout", "sdpa cudnn, no dropout"}
    assert who == ours if name == "ops" else not who & ours and {"torch eager", "sdpa flash", "torch.compile"} <= who
    ops_by_us = list(dict.fromkeys(row.split()[0] for row in names if row.endswith("megabert")))
    assert ops_by_us[:4] == (["layer_norm", "bias_gelu", "lamb", "attention"] if name == "ops" else [])


WHO = ("megabert", "torch.compile", "flex_attention", "torch eager", "AdamW fused", "torch")
WHO += tuple(f"sdpa {name}{end}" for name in ("flash", "cudnn", "efficient", "math") for end in (", no dropout", ""))


def test_a_loop_is_timed_after_as_many_calls(monkeypatch):
    calls = []

    class Event:
        def __init__(self, enable_timing):
            pass

        def record(self):
            self.call = len(calls)

        def elapsed_time(self, end):
            return 5.0 * (end.call - self.call)

    monkeypatch.setattr(clock, "median_ms", lambda function, device: 4.0)
    monkeypatch.setattr(clock, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    assert clock.ms_in_a_loop(lambda: calls.append(0), torch.device("cuda"), seconds=0.1) == 5.0
    assert len(calls) == 50


@pytest.mark.parametrize(("by_row", "shapes"), [(True, [(3, 1), (1, 5)]), (False, [(), ()])])
def test_fp8_has_a_scale_per_row_or_one_per_tensor(monkeypatch, by_row, shapes):
    given = {}
    monkeypatch.setattr(torch, "_scaled_mm", lambda left, right, **options: given.update(options, right=right))
    in_fp8(torch.ones(3, 4), torch.ones(4, 5), by_row=by_row, is_fast=not by_row)()
    assert given["use_fast_accum"] is not by_row
    assert [tuple(given[name].shape) for name in ("scale_a", "scale_b")] == shapes
    assert given["right"].shape == (4, 5)
    assert given["right"].stride() == (1, 4)  # as cuBLAS wants it: columns in memory one after the other


def test_row_has_clock_and_power_of_its_timed_window(rows_of, monkeypatch):
    rows = rows_of({})
    rows.device = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
    monkeypatch.setattr(torch.cuda, "power_draw", lambda: 650_000)
    monkeypatch.setattr(torch.cuda, "clock_rate", lambda: 1980)  # the thread that reads may begin before `timed`
    monkeypatch.setattr(clock, "METER_EVERY_S", 1e-3)
    monkeypatch.setattr("benchmarks.gpu.rows.is_broken", lambda device: False)

    def read(mhz, times):
        monkeypatch.setattr(torch.cuda, "clock_rate", lambda: mhz)
        while len(clock.READINGS) < times:
            time.sleep(1e-3)

    def timed():
        read(1980, 20)  # of a card that waits
        with clock.timed_window(rows.device):
            read(1700, 3)  # one may have been under way
        return {"ms": 1.0}

    row = rows.measure("timed", timed)
    assert (row["mhz"], row["watts"]) == (1700, 650)
    monkeypatch.setattr(torch.cuda, "power_draw", mock.Mock(side_effect=ModuleNotFoundError))
    assert "watts" not in rows.measure("no meter", lambda: {"ms": 1.0})


ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("reads_a_number", "per_step", "waits_by"), [(False, 1, "event 3"), (True, 3, "event 3, device 3, test_bench_gpu")]
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
    rows = rows_of({})
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
