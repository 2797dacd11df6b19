"""Pre-training in stretches: each call of `megabert pretrain` adds a line to a log, however it ended."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

from megabert.settings.config.loading import split_fork

STOPPED = 75
"""Exit code of a run that saved a checkpoint after a signal."""


def run_stretch(words: Sequence[object], run_dir: Path, log: Path, *, minutes: float | None = None) -> int:
    """Run ``megabert pretrain``, which begins or resumes the run, and append what it did to the log.

    Signals that end this process are passed on, so that the run saves a checkpoint first.

    Args:
        words: Arguments of ``megabert pretrain`` other than the run folder.
        run_dir: The run folder.
        log: JSON Lines: first and last step, seconds of the processor and by the clock, exit code.
        minutes: Stop after so many; None runs to the end.

    Returns:
        The exit code: 0 for a finished run, 75 for one that was stopped and saved, -9 for one that was killed.
    """
    command = [sys.executable, "-m", "megabert", "pretrain", *map(str, words), "--run-dir", str(run_dir)]
    forks = [split_fork(str(word))[1] for flag, word in pairwise(words) if flag == "--fork"]
    begun, first = time.monotonic(), max(last_step(run_dir), *forks, 0)
    started, code = datetime.now(UTC).isoformat(timespec="seconds"), commit()
    child = subprocess.Popen(command)

    def pass_on(number: int, frame: FrameType | None) -> None:
        # At the alarm the run is stopped as a user would stop it.
        child.send_signal(signal.SIGTERM if number == signal.SIGALRM else number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM):
        signal.signal(number, pass_on)
    if minutes is not None:
        signal.setitimer(signal.ITIMER_REAL, 60 * minutes)
    _, status, usage = os.wait4(child.pid, 0)
    signal.setitimer(signal.ITIMER_REAL, 0)
    row: dict[str, Any] = {
        "started": started,
        "from_step": first,
        "to_step": last_step(run_dir),
        "cpu_s": round(usage.ru_utime + usage.ru_stime, 1),
        "wall_s": round(time.monotonic() - begun, 1),
        "load": round(os.getloadavg()[2], 1),
        "exit": os.waitstatus_to_exitcode(status),
        "commit": code,
    }
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as file:
        file.write(json.dumps(row) + "\n")
    return int(row["exit"])


def last_step(run_dir: Path) -> int:
    """Return the last checkpoint's step, 0 if there is none: where the next stretch begins."""
    steps = [int(path.name.removeprefix("step_")) for path in (run_dir / "checkpoints").glob("step_*[0-9]")]
    return max(steps, default=0)


def commit() -> str:
    """Return the commit of the code that runs, with a plus sign if files differ from it."""
    root = Path(__file__).parents[2]
    words = ["git", "-C", str(root), "describe", "--always", "--dirty=+", "--exclude=*"]
    return subprocess.run(words, capture_output=True, text=True).stdout.strip()
