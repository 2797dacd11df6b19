"""Worlds of real processes: with one rank that fails, with all ranks failing."""

from pathlib import Path

import pytest
from several_ranks import small_worlds
from several_ranks.worker_group import CONTEXT
from support.processes import free_port

from megabert.distributed.process_group import FAILURE_BARRIER_S


def start(program, errors: Path, **variables: object):
    texts = {name: str(value) for name, value in variables.items()}
    process = CONTEXT.Process(target=small_worlds.run, args=(program, errors, texts), daemon=True)
    process.start()
    return process


def start_world(program, folder: Path) -> list:
    """Start two ranks; standard error of each goes to a file of its name."""
    port = free_port()
    return [
        start(
            program,
            folder / f"{program.__name__}.{rank}",
            RANK=rank,
            WORLD_SIZE=2,
            LOCAL_RANK=rank,
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=port,
        )
        for rank in range(2)
    ]


@pytest.fixture(scope="module")
def failing_worlds(tmp_path_factory):
    """(exit code, stderr) of the rank that fails alone, and of both ranks of a world in which all fail."""
    folder = tmp_path_factory.mktemp("worlds")
    stuck, *processes = start_world(small_worlds.fail_on_rank_1, folder)
    processes += start_world(small_worlds.fail_on_all, folder)
    errors = [folder / name for name in ("fail_on_rank_1.1", "fail_on_all.0", "fail_on_all.1")]
    try:
        for process in processes:
            process.join(60 + FAILURE_BARRIER_S)
        yield [(process.exitcode, path.read_text()) for process, path in zip(processes, errors, strict=True)]
    finally:
        for process in (stuck, *processes):
            process.kill()
            process.join(10)


def test_failing_rank_does_not_wait_for_ranks_that_are_stuck(failing_worlds):
    code, errors = failing_worlds[0]
    assert code == 7
    assert "leaves without the others" in errors


def test_ranks_that_all_fail_leave_together_with_their_own_code(failing_worlds):
    for code, errors in failing_worlds[1:]:
        assert code == 7
        assert "leaves without the others" not in errors
