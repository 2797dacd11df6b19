"""The committed table of kernel configurations, by device and shape; nothing is tuned at run time.

A configuration decides the order of sums: a run that tuned itself would not repeat.
Limits that each configuration keeps on each card: tests/unit/ops/kernel_budget.json.
"""

# T packed tokens, D hidden, F intermediate, H head width

import functools
from dataclasses import dataclass

import torch

ASSUMED = (9, 0)
"""Compute capability whose row is taken in the interpreter."""
ASSUMED_MULTIPROCESSORS = 2
"""A small number, so that interpreted programs loop."""


@dataclass(frozen=True)
class Tiles:
    """One launch configuration."""

    rows: int
    """Tokens a program works on at once."""
    columns: int
    """Columns (hidden, keys or vocabulary) it works on at once."""
    warps: int
    stages: int = 1
    """Depth of software pipelining."""


@functools.lru_cache(maxsize=16)
def capability_of(device: torch.device) -> tuple[int, int]:
    """Return a device's compute capability."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else ASSUMED


@functools.lru_cache(maxsize=16)
def multiprocessors_of(device: torch.device) -> int:
    """Return how many multiprocessors a device has."""
    if device.type != "cuda":
        return ASSUMED_MULTIPROCESSORS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def power_of_two(number: int) -> int:
    """Return the smallest power of two that is at least ``number``."""
    return 1 << max(0, number - 1).bit_length()


def split_rows(rows: int, tile: int, most: int) -> tuple[int, int]:
    """Deal rows out to at most ``most`` programs, whole tiles each; return (programs, rows each)."""
    if rows == 0:
        return 0, 0
    each = -(-rows // (tile * most)) * tile
    return -(-rows // each), each


LAYER_NORM_PROGRAMS = 4
"""Programs a multiprocessor in the backward pass; each adds up its rows before the second stage."""


def layer_norm_tiles(width: int) -> Tiles:
    """Return whole rows: about 8 elements a thread, several short rows together."""
    columns = power_of_two(width)
    rows = max(1, 512 // columns)
    return Tiles(rows, columns, warps=min(16, max(1, rows * columns // 256)))


BIAS_GELU_PROGRAMS = 16
"""Programs a multiprocessor in the backward pass."""


def bias_gelu_tiles(width: int) -> Tiles:
    """Return tiles of 2,048 elements, 16 a thread."""
    columns = min(256, power_of_two(width))
    return Tiles(2048 // columns, columns, warps=4)


@dataclass(frozen=True)
class AttentionTiles:
    """Launches of both directions: rows are queries, columns keys."""

    forward: Tiles
    backward: Tiles
    is_whole: bool
    """Whether the backward pass holds all keys of a head at once."""


WHOLE_LIMIT = {True: 256, False: 128}
"""Longest sequence whose keys a 16-bit backward pass holds at once; by whether a block may have 160 KiB or more."""


def attention_tiles(capability: tuple[int, int], *, head_width: int, max_seqlen: int, itemsize: int) -> AttentionTiles:
    """Return the launches for a device, a shape and a dtype (by its bytes)."""
    is_large = capability in ((8, 0), (9, 0), (10, 0), (10, 3))
    if itemsize == 4:  # products without tensor cores, for checks
        backward = Tiles(32, 32, warps=4)
        return AttentionTiles(Tiles(32, 32, warps=4), backward, is_whole=max_seqlen <= backward.columns)
    wide = head_width > 64
    forward = Tiles(64 if max_seqlen <= 64 else 128, 64, warps=4 if max_seqlen <= 64 else 8, stages=2)
    limit = WHOLE_LIMIT[is_large and not wide]
    if max_seqlen <= limit:
        columns = max(32, power_of_two(max_seqlen))
        backward = Tiles(32 if columns > 128 else 64, columns, warps=4 if columns <= 64 else 8)
        return AttentionTiles(forward, backward, is_whole=True)
    return AttentionTiles(forward, Tiles(32 if wide else 64, 128, warps=8), is_whole=False)
