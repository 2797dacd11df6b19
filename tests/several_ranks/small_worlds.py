"""Programs of a rank, each a whole process: a world whose rank 1 fails, one whose ranks all fail."""

import os
from pathlib import Path


def run(program, errors: Path, variables: dict[str, str]) -> None:
    """Run one of the programs below with variables set and standard error in a file."""
    file = os.open(errors, os.O_WRONLY | os.O_CREAT)
    os.dup2(file, 2)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        os.environ.pop(name, None)
    os.environ.update(variables)
    program()


def fail_on_rank_1() -> None:
    import torch
    import torch.distributed as dist

    from megabert.distributed.process_group import distributed_world

    with distributed_world("cpu") as world:
        if world.rank == 1:
            raise SystemExit(7)
        dist.all_reduce(torch.ones(1))  # rank 1 never joins


def fail_on_all() -> None:
    from megabert.distributed.process_group import distributed_world

    with distributed_world("cpu"):
        raise SystemExit(7)
