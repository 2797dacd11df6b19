"""Runs of ``megabert`` as a user starts them, and what their run folders say."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SHARDS = ROOT / "build" / "bench-gpu-shards"
"""What shards.py makes; built elsewhere where this machine lacks the corpus."""
WHEELS = ROOT / "build" / "bench-gpu-wheels"
"""What wheels.py collects."""
LENGTHS = (128, 512)


def words(*command: str, **flags: Any) -> list[str]:
    """Return ``python -m megabert`` with a command and flags; a dot in a flag's name is written ``__``."""
    named = {name.replace("__", ".").replace("_dir", "-dir"): value for name, value in flags.items()}
    return [sys.executable, "-m", "megabert", *command, *(w for n, v in named.items() for w in (f"--{n}", str(v)))]


@contextlib.contextmanager
def started(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a command with its output in a file. If it still runs at the end, it is killed with what it has started."""
    with log.open("w") as output:
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, process_group=0)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def run(command: list[str], log: Path, limit_s: float) -> float:
    """Run a command with its output in a file; return its seconds.

    Raises:
        RuntimeError: It failed; with its last line.
        TimeoutExpired: It was killed at its limit.
    """
    began = time.monotonic()
    log.parent.mkdir(parents=True, exist_ok=True)
    with started(command, log) as process:
        wait_for(process, log, limit_s)
    return time.monotonic() - began


def wait_for(process: subprocess.Popen[bytes], log: Path, limit_s: float) -> None:
    """Wait for a started command, with the errors of ``run``."""
    if code := process.wait(max(1.0, limit_s)):
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        raise RuntimeError(f"{' '.join(process.args[2:5])} ended with {code}: {' / '.join(lines[-3:])}"[-280:])


def start_and_kill(command: list[str], log: Path, run_dir: Path, *, at_step: int, limit_s: float) -> int:
    """Start a pre-training, kill -9 all of it once it has logged a step, and return the last step that it logged."""
    end = time.monotonic() + limit_s
    with started(command, log) as process:
        while not any(row["step"] >= at_step for row in metrics(run_dir)):
            if process.poll() is not None:
                raise RuntimeError(f"it ended by itself with {process.returncode}: {log.read_text()[-200:]}")
            if time.monotonic() > end:
                raise TimeoutError(f"step {at_step} was not reached in {limit_s:.0f} s")
            time.sleep(0.02)
    return max(row["step"] for row in metrics(run_dir))


def metrics(run_dir: Path) -> list[Mapping[str, Any]]:
    """Return the rows of metrics.jsonl, a line cut by a kill left out."""
    path = run_dir / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def data_of(lengths: tuple[int, ...] = LENGTHS) -> Path:
    """Return the folder of the shards.

    Raises:
        RuntimeError: They are not there.
    """
    if not all((SHARDS / "instances" / str(length) / "manifest.json").exists() for length in lengths):
        raise RuntimeError(f"no shards in {SHARDS.relative_to(ROOT)}: run `python -m benchmarks.gpu.shards` first")
    return SHARDS
