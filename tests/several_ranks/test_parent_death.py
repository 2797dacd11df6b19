"""Ranks whose launcher is dead before they come to life, or is not their parent."""

import os
import signal
import socket
import subprocess
import sys

import pytest
from support.processes import has_ended, wait_for

RANK = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
DEEPSPEED = {**RANK, "CROSS_SIZE": "1"}
TORCHRUN = {**RANK, "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_ADDR": "127.0.0.1"}
RANK_COMMAND = [sys.executable, "-m", "megabert", "pretrain", "--help"]

# What ``deepspeed`` starts on a node, which starts a rank once the command itself has ended.
ORPHANED_LAUNCHER = """
import os, subprocess, sys, time
runner = os.getppid()
print("started", flush=True)
while os.getppid() == runner:
    time.sleep(0.01)
variables = {"CROSS_SIZE": "1", "RANK": "0", "WORLD_SIZE": "2"}
done = subprocess.run(sys.argv[2:], env=os.environ | variables, capture_output=True)
with open(sys.argv[1], "w") as file:
    print(done.returncode, done.stderr.decode(), file=file, flush=True)
"""


def test_rank_of_a_launcher_that_deepspeed_left_behind_ends_at_once(tmp_path):
    launcher, outcome = tmp_path / "deepspeed.launcher.launch", tmp_path / "outcome"
    launcher.write_text(ORPHANED_LAUNCHER)
    runner = tmp_path / "deepspeed"
    runner.write_text(LAUNCHER)
    process = subprocess.Popen(
        [sys.executable, str(runner), str(launcher), str(outcome), *RANK_COMMAND],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert process.stdout.readline() == b"started\n"
        process.kill()
        process.wait()
        text = wait_for(lambda: outcome.read_text() if outcome.exists() and "\n" in outcome.read_text() else None)
        assert text.startswith("137 megabert: this rank ends: its launcher ended"), text
    finally:
        os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("is_there", [True, False])
def test_rank_looks_whether_torchrun_still_listens(is_there):
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        if is_there:
            listening.listen()
        environment = {**os.environ, **TORCHRUN, "MASTER_PORT": str(listening.getsockname()[1])}
        done = subprocess.run(RANK_COMMAND, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == (0 if is_there else 137)
    assert ("torchrun has ended" in done.stderr) is not is_there


SLEEPING_RANK = """
import os, sys, time
import megabert.settings.command_line.safe_path
from megabert.distributed.parent_death import die_with_launcher
die_with_launcher()
heavy = [name for name in ("torch", "numpy", "pydantic", "yaml", "deepspeed") if name in sys.modules]
open(sys.argv[1], "w").write(f"{os.getpid()} {' '.join(heavy)}")
time.sleep(60)
"""
LAUNCHER = """
import subprocess, sys
subprocess.run([sys.executable, *sys.argv[1:]])
"""
IN_SHELL = """
import os, subprocess, sys
rank = ["sh", "-c", '"$@"; exit', "-", sys.executable, *sys.argv[1:]]
subprocess.run(rank, env=os.environ | {"TORCHELASTIC_RUN_ID": "none", "RANK": "0", "WORLD_SIZE": "2"})
"""
CHAINS = {
    "its launcher": {"launcher.py": LAUNCHER},
    "the command whose launcher starts it": {"deepspeed": LAUNCHER, "deepspeed.launcher.launch": LAUNCHER},
    "a launcher above a script": {"launcher.py": IN_SHELL},
}


@pytest.mark.parametrize("programs", CHAINS.values(), ids=CHAINS)
def test_rank_dies_with(programs, tmp_path):
    pid_file, programs = tmp_path / "pid", {**programs, "rank.py": SLEEPING_RANK}
    for name, text in programs.items():
        (tmp_path / name).write_text(text)
    command = [sys.executable, *(str(tmp_path / name) for name in programs), str(pid_file)]
    launcher = subprocess.Popen(command, start_new_session=True)
    try:
        pid, *heavy = wait_for(lambda: pid_file.read_text().split() if pid_file.exists() else None)
        assert not heavy, "what takes seconds to import comes later"
        launcher.kill()
        launcher.wait()
        wait_for(lambda: has_ended(int(pid)))
    finally:
        os.killpg(launcher.pid, signal.SIGKILL)


def test_rank_whose_launcher_lives_is_left_alone():
    done = subprocess.run(RANK_COMMAND, env={**os.environ, **DEEPSPEED}, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
