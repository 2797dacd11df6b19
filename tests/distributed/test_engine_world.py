"""Worlds of real processes: alone, with one rank that fails, with all ranks failing."""

import os
import subprocess
import sys

import pytest
from worker_group import free_port

from megabert.distributed.process_group import FAILURE_BARRIER_S

ALONE_TWICE = """
import os
from megabert.distributed.process_group import distributed_world
for _ in range(2):
    with distributed_world("cpu") as world:
        assert (world.rank, world.size, world.is_main) == (0, 1, True)
        assert world.gather("a") == ["a"]
assert "RANK" not in os.environ
"""
RANK_1_FAILS = """
import torch, torch.distributed as dist
from megabert.distributed.process_group import distributed_world
with distributed_world("cpu") as world:
    if world.rank == 1:
        raise SystemExit(7)
    dist.all_reduce(torch.ones(1))  # rank 1 never joins
"""
ALL_FAIL = """
from megabert.distributed.process_group import distributed_world
with distributed_world("cpu") as world:
    raise SystemExit(7)
"""


def start(script: str, rank: int, size: int, port: int) -> subprocess.Popen:
    environment = {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank)}
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return subprocess.Popen(
        [sys.executable, "-c", script], env={**os.environ, **environment}, stderr=subprocess.PIPE, text=True
    )


def test_world_of_one_needs_no_launcher_and_may_be_entered_again():
    environment = {
        name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    }
    subprocess.run([sys.executable, "-c", ALONE_TWICE], env=environment, check=True, timeout=60)


@pytest.fixture(scope="module")
def failing_worlds():
    """(exit code, stderr) of the rank that fails alone, and of both ranks of a world in which all fail."""
    ports = free_port(), free_port()
    stuck, *processes = [start(RANK_1_FAILS, rank, 2, ports[0]) for rank in range(2)]
    processes += [start(ALL_FAIL, rank, 2, ports[1]) for rank in range(2)]
    try:
        errors = [process.communicate(timeout=60 + FAILURE_BARRIER_S)[1] for process in processes]
        yield [(process.returncode, error) for process, error in zip(processes, errors, strict=True)]
    finally:
        for process in (stuck, *processes):
            process.kill()
            process.communicate(timeout=10)


def test_failing_rank_does_not_wait_for_ranks_that_are_stuck(failing_worlds):
    code, errors = failing_worlds[0]
    assert code == 7
    assert "leaves without the others" in errors


def test_ranks_that_all_fail_leave_together_with_their_own_code(failing_worlds):
    for code, errors in failing_worlds[1:]:
        assert code == 7
        assert "leaves without the others" not in errors
