"""A signal at any moment of a command ends it with the shell's code: no traceback, nothing half-written or left."""

import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from bad_input.harness import MODULES, snapshot
from bad_input.material import COMMANDS
from forked.client import environment_of_commands

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
START_S = 0.15
"""Python itself starts, and answers Ctrl-C as it does."""
SOAK_MOMENTS = int(os.environ.get("MEGABERT_SIGNAL_MOMENTS", "30"))
GRACE_S = 0.3
"""Between the moment at which we look whether a command has ended, and the signal."""

BUILD = COMMANDS["build"].replace("--output build", "--output new")
EVALUATE = "megabert evaluate --model tuned/seed_42/model --data labels.tsv"
# command, what it reads, what its output says at its end
SWEPT = {
    "embed": ("megabert embed lines.txt --model hf --output v.npy", ("hf", "lines.txt"), "vectors of"),
    "build": (BUILD.replace("--workers 1", "--workers 2"), ("text.jsonl",), "shards"),
    "vocab": ("megabert-data vocab --input text.jsonl --output new --vocab-size 400", ("text.jsonl",), "tokenizer new"),
    "verify": ("megabert-data verify build/instances/32 --workers 2", ("build",), "instances"),
    "fill-mask": ("megabert fill-mask --model hf 'the [MASK] ship'", ("hf",), "MASK"),
    "export": ("megabert export run --to new", ("run",), "new"),
    "report": ("megabert report run", ("run", "build"), "loss curve"),
    "finetune": (COMMANDS["tuned"].replace("--output-dir tuned", "--output-dir new"), ("hf", "labels.tsv"), "model"),
    "evaluate": (f"{EVALUATE} --predictions new --device cpu", ("tuned", "labels.tsv"), "accuracy"),
    "pretrain": (COMMANDS["run"].replace("--run-dir run", "--run-dir new"), ("build",), "held out at step 6"),
}
QUICK = {"build": (0.5, 0.85)}
"""What ``make test`` sweeps: shares of the time that the command takes."""


def start(name: str, folder: Path, material: Path) -> subprocess.Popen[str]:
    """Start a command in a folder of its own; its output goes to files next to it, as it comes."""
    command, needs, _ = SWEPT[name]
    for need in needs:
        (shutil.copytree if (material / need).is_dir() else shutil.copy2)(material / need, folder / need)
    program, *words = shlex.split(command)
    return subprocess.Popen(
        [sys.executable, "-m", MODULES[program], *words],
        cwd=folder,
        env=environment_of_commands(),
        stdout=folder.with_suffix(".out").open("w"),
        stderr=folder.with_suffix(".err").open("w"),
        text=True,
        start_new_session=True,
        preexec_fn=heed_signals,
    )


def heed_signals() -> None:
    """Undo what ``nohup``, or a shell's ``&``, has done to this process."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)


def assert_ended_by(number: signal.Signals, process: subprocess.Popen[str], folder: Path, *, said: str) -> None:
    time.sleep(GRACE_S)
    is_done = any(said in folder.with_suffix(suffix).read_text() for suffix in (".out", ".err"))
    children = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    process.wait(120)
    out, err = (folder.with_suffix(suffix).read_text() for suffix in (".out", ".err"))
    told = f"{process.returncode}\n{out[-1000:]}\n{err[-3000:]}"
    if not (process.returncode == 0 and is_done):  # else the signal came when the work was done
        saves = number in (signal.SIGINT, signal.SIGTERM)
        codes = (75,) if "pretrain" in str(process.args) and saves else ()
        assert process.returncode in (*codes, 128 + number), told
    assert "Traceback" not in out + err, told
    assert "Exception ignored" not in err, told
    assert not [path for path in snapshot(folder) if path.endswith(".tmp") or ".tmp/" in path], told
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not [child for child in alive if child.status() != psutil.STATUS_ZOMBIE], told


def sweep(name: str, shares: list[float], material: Path, tmp_path: Path) -> None:
    """Time a command, then signal it at shares of that time, in turn to the process and to its whole group."""
    (tmp_path / "whole").mkdir()
    begun = time.monotonic()
    process = start(name, tmp_path / "whole", material)
    assert process.wait(240) == 0, (tmp_path / "whole.err").read_text()
    whole_s = time.monotonic() - begun
    for index, share in enumerate(shares):
        number, folder = SIGNALS[index % len(SIGNALS)], tmp_path / str(index)
        folder.mkdir()
        process = start(name, folder, material)
        try:
            process.wait(START_S + share * (whole_s - START_S))
        except subprocess.TimeoutExpired:
            (os.killpg if index % 2 else os.kill)(process.pid, number)
        assert_ended_by(number, process, folder, said=SWEPT[name][2])
        shutil.rmtree(folder)
        print(f"{name}: {share:.2f} of {whole_s:.1f} s, {number.name}, exit code {process.returncode}")


@pytest.mark.parametrize("name", QUICK)
def test_signal_at_a_few_moments_ends_a_command_cleanly(name, material, tmp_path):
    sweep(name, list(QUICK[name]), material, tmp_path)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", SWEPT)
def test_signal_at_every_moment_ends_a_command_cleanly(name, material, tmp_path):
    chance = random.Random(name)
    sweep(name, [chance.random() for _ in range(SOAK_MOMENTS)], material, tmp_path)
