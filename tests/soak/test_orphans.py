"""kill -9 of a launcher in its first seconds, which is mostly before its ranks have met: nothing outlives it.

A third of the kills come 0.5 to 12 s after the launcher's start. On a busy machine that is before it has started
anything, so a third come up to 6 s after it has a child (the deepspeed command starts another launcher, that one the
ranks), and a third up to 12 s after it has a rank.
"""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from integration.slurm.conftest import cluster  # noqa: F401, a fixture
from support.runs import Run

KILLS = 60
LAUNCHERS = ("deepspeed", "torchrun", "srun")
MOMENTS = {"its start": (0.5, 12.0), "its first child": (0.0, 6.0), "its first rank": (0.0, 12.0)}
"""What is waited for, and after how many seconds the kill comes."""
ALLOWED_S = 60.0
"""How long anything may outlive the launcher."""
MARK = "MEGABERT_TEST_OF_ORPHANS"
"""Variable by which every process of a run is known, whoever its parent is."""
# Far more steps than are made before the launcher is killed.
FLAGS = {"phases.0.steps": 20_000, "device": "cpu"}


class SlurmRun(Run):
    """A run of two tasks of srun."""

    def command(self) -> list[str]:
        """Return the words of the command."""
        alone = Run(self.run_dir, self.data, ranks=1, flags=self.flags)
        return ["srun", "--ntasks", str(self.ranks), "--kill-on-bad-exit=1", *alone.command()]


def marked(mark: str) -> dict[int, str]:
    """Return the commands of all living processes that have the mark, by process."""
    wanted = f"{MARK}={mark}".encode()
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:120]
        except OSError:
            continue
    return found


def is_rank(command: str) -> bool:
    return " -m megabert " in command and not any(name in command for name in ("torch.distributed", "--module", "srun"))


@pytest.fixture
def surroundings(request, launcher, tmp_path, monkeypatch) -> str:
    """Set the environment of a run; return its mark."""
    if launcher == "srun":
        for name, value in request.getfixturevalue("cluster").items():
            monkeypatch.setenv(name, value)
    monkeypatch.setenv(MARK, str(tmp_path))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    return str(tmp_path)


def wait_for_moment(moment: str, mark: str, process: subprocess.Popen, timeout_s: float = 240) -> None:
    """Return once a launcher has a child or a rank; at once for its start."""
    deadline = time.monotonic() + timeout_s
    while moment != "its start":
        alive = marked(mark)
        if len(alive) > 1 if moment == "its first child" else any(map(is_rank, alive.values())):
            return
        assert process.poll() is None
        assert time.monotonic() < deadline, f"no {moment} in {timeout_s} s: {alive}"
        time.sleep(0.01)


def check_nothing_outlives(run: Run, mark: str, moment: str, delay_s: float) -> str:
    """Start, kill -9 the launcher at a moment, wait until nothing with the mark lives; return what happened."""
    process = run.start()
    try:
        wait_for_moment(moment, mark, process)
        time.sleep(delay_s)
        assert process.poll() is None, f"it ended before it was killed:\n{run.output[-4000:]}"
        before = marked(mark)
        process.kill()
        process.wait()
        killed = time.monotonic()
        while (alive := marked(mark)) and time.monotonic() < killed + ALLOWED_S:
            time.sleep(0.05)
        assert not alive, f"{ALLOWED_S:g} s after the launcher: {alive}"
        ranks, took_s = sum(map(is_rank, before.values())), time.monotonic() - killed
        steps = max(run.losses(), default=0)
        return (
            f"{ranks} ranks and {len(before) - ranks} others, {steps} steps made; nothing is left {took_s:.1f} s later"
        )
    finally:
        for pid in marked(mark):
            os.kill(pid, 9)
        process.wait(30)


@pytest.mark.soak
@pytest.mark.parametrize(("number", "launcher"), [(n, LAUNCHERS[n % len(LAUNCHERS)]) for n in range(KILLS)])
def test_nothing_outlives_its_launcher(shards, tmp_path, surroundings, number, launcher):
    moment, (shortest_s, longest_s) = list(MOMENTS.items())[number // len(LAUNCHERS) % len(MOMENTS)]
    delay_s = random.Random(number).uniform(shortest_s, longest_s)
    kind = SlurmRun if launcher == "srun" else Run
    run = kind(tmp_path / "run", shards, ranks=2, launcher=launcher, flags=FLAGS)
    happened = check_nothing_outlives(run, surroundings, moment, delay_s)
    print(f"\n{launcher} killed {delay_s:.2f} s after {moment}: {happened}", end=" ", flush=True)
