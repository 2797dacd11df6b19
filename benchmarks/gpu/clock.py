"""Times on a device, and the two ceilings that they are held against."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch


def synchronize(device: torch.device) -> None:
    """Wait for the device; nothing on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def median_ms(function: Callable[[], Any], device: torch.device, *, repeat_ms: int = 60) -> float:
    """Return the median time of a call; on a GPU by events, its L2 cache flushed before each, after warming up."""
    function()
    synchronize(device)
    if device.type == "cuda":
        from triton.testing import do_bench

        return float(do_bench(function, warmup=20, rep=repeat_ms, return_mode="median"))
    times = []
    for _ in range(3):
        started = time.perf_counter()
        function()
        times.append(1e3 * (time.perf_counter() - started))
    return statistics.median(times)


def copy_gb_per_s(device: torch.device, numel: int) -> float:
    """Return bytes read plus written per second of a large copy, in GB/s."""
    source = torch.randn(numel, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / median_ms(lambda: target.copy_(source), device) / 1e6


def matmul_tflop_per_s(device: torch.device, size: int, dtype: torch.dtype) -> float:
    """Return the rate of a large square matrix product on random data."""
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    return 2 * size**3 / median_ms(lambda: left @ right, device, repeat_ms=200) / 1e9
