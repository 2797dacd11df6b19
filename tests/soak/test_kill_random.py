"""kill -9 of a random rank at 50 random moments of one run, half of them while a checkpoint is being written.

``MEGABERT_KILLS`` is another number of kills.
"""

import os
import random
import time

import pytest
from support.runs import Run, kill_everything, ranks_of

from megabert.checkpoints.format import find_damage, steps_in

pytestmark = pytest.mark.soak

KILLS = int(os.environ.get("MEGABERT_KILLS", "50"))
RANKS = 2
# Every step is saved and a step is short, so that much of the time is spent on checkpoints.
FLAGS = {"phases.0.steps": 2000, "phases.1.steps": 150, "checkpoint.every_steps": 1, "validation.every_steps": 500}
LAUNCHERS = ("deepspeed", "torchrun")


def wait_until_writing(run: Run, process, timeout_s: float = 60) -> None:
    """Return while a temporary folder of a checkpoint exists."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and process.poll() is None:
        if any((run.run_dir / "checkpoints").glob(".tmp_step_*")):
            return
        time.sleep(0.001)


def kill_at_a_random_moment(run: Run, rng: random.Random, number: int) -> str:
    """Start, kill -9 one rank, wait until nothing of the run lives; return what was done."""
    process = run.start()
    try:
        before = time.monotonic()
        if number % 5 == 4:  # also during start-up
            delay = rng.uniform(0.5, 8)
            time.sleep(delay)
        else:
            run.wait_for_step(max(run.losses(), default=0) + 1, process)
            time.sleep(rng.uniform(0, 1))
        if number % 2:
            wait_until_writing(run, process)
        assert process.poll() is None, f"it ended before it was killed:\n{run.output[-4000:]}"
        temporary = [path.name for path in (run.run_dir / "checkpoints").glob(".tmp*")]
        ranks = ranks_of(process)
        if not ranks:
            os.kill(process.pid, 9)
        else:
            victim = rng.randrange(len(ranks))
            ranks[victim].kill()
        process.wait(90)
        for rank in ranks:
            rank.wait(60)
        who = f"rank {victim}" if ranks else "the launcher"
        return f"{run.launcher:<9} {who} after {time.monotonic() - before:.1f} s, {', '.join(temporary) or 'no write'}"
    finally:
        kill_everything(process)


def test_kill_random_moments(shards, tmp_path):
    unbroken = Run(tmp_path / "unbroken", shards, ranks=RANKS, launcher="deepspeed", flags=FLAGS)
    assert unbroken.finish(timeout_s=1800) == 0, unbroken.output[-4000:]
    rng = random.Random(1)
    checkpoints = tmp_path / "run" / "checkpoints"
    writing = 0
    for number in range(KILLS):
        run = Run(tmp_path / "run", shards, ranks=RANKS, launcher=LAUNCHERS[number // 2 % 2], flags=FLAGS)
        what = kill_at_a_random_moment(run, rng, number)
        writing += ".tmp_step" in what
        reached = max(run.losses(), default=0)
        latest = checkpoints / "latest"
        stored = int(latest.read_text().strip().removeprefix("step_")) if latest.exists() else None
        if stored is not None:
            for step in steps_in(checkpoints):
                assert find_damage(checkpoints / f"step_{step:08d}") is None
        print(f"\nkill {number + 1}: {what}; at step {reached}, latest {stored}", end="", flush=True)
    run = Run(tmp_path / "run", shards, ranks=RANKS, launcher="deepspeed", flags=FLAGS)
    assert run.finish(timeout_s=1800) == 0, run.output[-4000:]
    assert run.losses() == unbroken.losses()
    print(f"\n{KILLS} kills, {writing} while a checkpoint was written: 0 runs lost, 0 damaged checkpoints;")
    print(f"the losses of {len(run.losses())} steps are the undisturbed run's bit for bit")
    assert writing >= KILLS // 4
