"""Times on a device, its clock and power meanwhile, and the two ceilings that times are compared with."""

import contextlib
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from megabert.ops.backend import compiled_kernels

L2_BYTES = 1 << 28
"""What is written to flush a cache; several times any GPU's."""
AHEAD, PAUSE_CYCLES = 20, 10_000_000
"""Calls queued after a pause of about 5 ms: the host takes up to 0.2 ms to launch an op with its gradient, the device
50 us to run it, and without a lead the launch would be what is timed."""
COMPILED_IN_WINDOWS: list[str] = []
"""Kernels that were compiled while something was timed, since a row began."""


METER_EVERY_S = 0.02
READINGS: list[tuple[int, float]] = []
"""Clock in MHz and power in W of the card since a row began, or since its last timed window did."""


@contextlib.contextmanager
def metered(device: torch.device) -> Iterator[None]:
    """Fill READINGS meanwhile, on a GPU; torch asks the driver through the package nvidia-ml-py."""
    READINGS.clear()
    ended = threading.Event()

    def read() -> None:
        with contextlib.suppress(Exception):  # a driver that does not answer costs no row
            while not ended.wait(METER_EVERY_S):
                READINGS.append((torch.cuda.clock_rate(), torch.cuda.power_draw() / 1000))

    thread = threading.Thread(target=read, daemon=True)
    if device.type == "cuda":
        thread.start()
    try:
        yield
    finally:
        ended.set()
        if device.type == "cuda":
            thread.join()


def median_readings() -> dict[str, int]:
    """Return the medians of READINGS. The driver's power is itself a mean, over the last second."""
    values = [round(statistics.median(column)) for column in zip(*READINGS, strict=True)]
    return dict(zip(("mhz", "watts"), values, strict=False))


@contextlib.contextmanager
def timed_window(device: torch.device) -> Iterator[None]:
    """Wait for the device at both ends, and remember what Triton compiled in between: there should be nothing."""
    synchronize(device)
    before = len(compiled_kernels())
    READINGS.clear()
    yield
    synchronize(device)
    COMPILED_IN_WINDOWS.extend(compiled_kernels()[before:])


def synchronize(device: torch.device) -> None:
    """Wait for the device; nothing on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def is_broken(device: torch.device) -> bool:
    """Return whether an earlier kernel has made the device unusable for this process, as an illegal access does."""
    try:
        synchronize(device)
        torch.zeros(1, device=device)
    except RuntimeError:
        return True
    return False


def median_ms(function: Callable[[], Any], device: torch.device, *, repeat_ms: int = 60) -> float:
    """Return the median time of a call; on a GPU by events, its L2 cache flushed before each, after warming up."""
    function()
    synchronize(device)
    if device.type == "cuda":
        return _median_ms_on_gpu(function, repeat_ms)
    times = []
    with timed_window(device):
        for _ in range(3):
            started = time.perf_counter()
            function()
            times.append(1e3 * (time.perf_counter() - started))
    return statistics.median(times)


def _median_ms_on_gpu(function: Callable[[], Any], repeat_ms: int) -> float:
    flushed = torch.empty(L2_BYTES, dtype=torch.uint8, device="cuda")

    def times(count: int) -> list[float]:
        events = [tuple(torch.cuda.Event(enable_timing=True) for _ in range(2)) for _ in range(count)]
        for number, (start, end) in enumerate(events):
            if number % AHEAD == 0:
                torch.cuda._sleep(PAUSE_CYCLES)
            flushed.zero_()
            start.record()
            function()
            end.record()
        torch.cuda.synchronize()
        return [start.elapsed_time(end) for start, end in events]

    estimate_ms = statistics.median(times(5))
    count = max(10, min(200, int(repeat_ms / max(estimate_ms, 1e-3))))
    times(count)  # the clock rises with the work
    with timed_window(torch.device("cuda")):
        return statistics.median(times(count))


def ms_in_a_loop(function: Callable[[], Any], device: torch.device, *, seconds: float) -> float:
    """Return the mean time of a call among calls of some seconds without a pause.

    The same number of calls before them is not counted. By then a card at its limit of power has lowered its clock,
    as in training; a burst of a few milliseconds is faster.
    """
    estimate_ms = median_ms(function, device)
    if device.type != "cuda":
        return estimate_ms
    count = max(1, round(1e3 * seconds / estimate_ms))
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with timed_window(device):
        for number in range(2 * count):
            if number == count:
                start.record()
            function()
        end.record()
    return float(start.elapsed_time(end)) / count


def copy_gb_per_s(device: torch.device, numel: int) -> float:
    """Return bytes read plus written per second of a large copy, in GB/s."""
    source = torch.randn(numel, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / median_ms(lambda: target.copy_(source), device) / 1e6


def matmul_tflop_per_s(device: torch.device, size: int, dtype: torch.dtype) -> float:
    """Return the rate of a large square matrix product on random data."""
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    return 2 * size**3 / median_ms(lambda: left @ right, device, repeat_ms=200) / 1e9
