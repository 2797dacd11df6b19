"""Compile a part's kernels in several processes: Triton's cache on the disk then serves the measuring process."""

import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

PROCESSES = 8


def compile_beside(run_share: Callable[..., None], arguments: Sequence[Any], *, limit_s: float) -> None:
    """Call ``run_share(*arguments, number, of)`` in processes of their own, on a GPU only; what fails there is ignored.

    Args:
        run_share: Runs every ``of``-th case from ``number`` on; importable.
        arguments: Its first arguments.
        limit_s: Processes are ended after that.
    """
    if not torch.cuda.is_available():
        return
    of = max(1, min(PROCESSES, (os.cpu_count() or 1) // 2))
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=run_share, args=(*arguments, number, of), daemon=True) for number in range(of)]
    for process in processes:
        process.start()
    end = time.monotonic() + limit_s
    for process in processes:
        process.join(max(0.0, end - time.monotonic()))
        process.kill()
