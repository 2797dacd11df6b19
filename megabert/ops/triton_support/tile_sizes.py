"""The table of launch configurations by device and shape; nothing is tuned at run time.

A configuration decides the order of sums, so a run that tuned itself would not repeat. Every configuration here was
compiled for each card and keeps its limits of registers and shared memory: tests/unit/ops/kernel_budget.json.
"""

# T packed tokens, D hidden, F intermediate, H head width

import functools
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from megabert.ops.triton_support.tuned_tiles import tuned

ASSUMED = (9, 0)
"""Compute capability that is assumed in the interpreter, which has no device."""
UNKNOWN = (0, 0)
"""A card that no table here has."""
ASSUMED_MULTIPROCESSORS = 2
"""Multiprocessors that are assumed there: few, so that interpreted programs loop as on a GPU."""


@dataclass(frozen=True)
class Tiles:
    """One launch configuration."""

    rows: int
    """Rows (tokens or queries) that a program works on at once."""
    columns: int
    """Columns (hidden, keys or vocabulary) that it works on at once."""
    warps: int
    """Warps of 32 threads in a program: Triton's ``num_warps``."""
    stages: int = 1
    """Triton's ``num_stages``: the number of loop iterations whose tiles have room in shared memory.

    With N, the loads of an iteration are issued N - 1 iterations ahead. With 2 they are issued at the end of the
    iteration before, so the next one begins by waiting for them while nothing else is in flight; with 3 the loads of a
    further iteration stay in flight through that wait. With 1 nothing is loaded ahead.
    """

    def tuned(self, launch: str) -> "Tiles":
        """Return the tile that ``megabert tune`` found for a launch, if its file is in use, and else this one."""
        return Tiles(*tuned(launch, (self.rows, self.columns, self.warps, self.stages)))

    @property
    def options(self) -> dict[str, int]:
        """A launch's arguments, but for the stages, which only kernels with matrix products take from there."""
        return {"ROWS": self.rows, "COLUMNS": self.columns, "num_warps": self.warps}

    def launch_over(self, kernel: Any, tensors: tuple[Tensor, ...], *numbers: float, **constants: bool) -> None:
        """Launch a kernel that works on the tiles of its last tensor row by row (``device_functions.row_tile``)."""
        tokens, width = tensors[-1].shape
        if tokens:
            # One dimension of programs: the others end at 65,535.
            grid = (-(-width // self.columns) * -(-tokens // self.rows),)
            kernel[grid](*tensors, tokens, width, *numbers, **constants, **self.options)


@functools.lru_cache(maxsize=16)
def capability_of(device: torch.device) -> tuple[int, int]:
    """Return a device's compute capability; AMD's cards have numbers of their own, some of them equal to NVIDIA's."""
    if torch.version.hip is not None:
        return UNKNOWN
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
    """Deal out rows to programs, in whole tiles.

    Args:
        rows: Rows to deal out.
        tile: Rows of a tile.
        most: Programs there may be at most.

    Returns:
        Number of programs, and rows of each; the last may have fewer.
    """
    if rows == 0:
        return 0, 0
    each = -(-rows // (tile * most)) * tile
    return -(-rows // each), each


LAYER_NORM_PROGRAMS = 4
"""Programs on a multiprocessor in the backward pass; each adds up its rows, ``column_sums`` adds up programs.

Four programs of four warps, each with the loads of its next row under way, have 48 KiB in flight on each multiprocessor
of an H200, where the latency of memory asks for about 30.
"""


def layer_norm_tiles(width: int) -> tuple[Tiles, Tiles]:
    """Return tiles of whole rows, several short ones together, for forward and backward.

    Forward has 32 elements per thread, so that a row of up to 1,024 belongs to one warp and its sums need no shared
    memory: 1,024 warp instructions for a row of BERT-Large against 1,536 with 8 per thread, where the memory of an
    H200 leaves time for 1,355. Rows above 2,048 have 16, because 32 spill registers in float32. Backward has 8 per
    thread, because three sums per column stay in registers.
    """
    columns = power_of_two(width)
    rows = max(1, 512 // columns)
    elements = rows * columns
    forward = Tiles(rows, columns, warps=min(16, max(1, elements // (1024 if columns <= 2048 else 512))))
    backward = Tiles(rows, columns, warps=min(16, max(1, elements // 256)), stages=2)
    return forward.tuned(f"layer_norm forward {width}"), backward.tuned(f"layer_norm backward {width}")


def row_cast_tiles(width: int) -> Tiles:
    """Return tiles of whole rows, several short ones together, 32 elements per thread."""
    columns = power_of_two(width)
    rows = max(1, 1024 // columns)
    return Tiles(rows, columns, warps=min(16, rows * columns // 1024))


BIAS_GELU_PROGRAMS, BIAS_GELU_ROW_PROGRAMS = 16, 4
"""Programs on a multiprocessor in the backward pass, whose tiles are parts of rows or whole rows."""


def bias_gelu_tiles(width: int, *, has_cast: bool = False) -> Tiles:
    """Return tiles of 2,048 elements, 16 per thread, or of whole rows if these are to be cast to 8 bits."""
    if has_cast:
        columns = power_of_two(width)
        rows = max(1, 2048 // columns)
        return Tiles(rows, columns, warps=min(16, rows * columns // 512)).tuned(f"gelu_rows {width}")
    columns = min(256, power_of_two(width))
    return Tiles(2048 // columns, columns, warps=4).tuned(f"bias_gelu {width}")


LONGEST = 512
"""Length from which on all longer sequences share kernels and tiles."""


@dataclass(frozen=True)
class AttentionTiles:
    """Launches of both passes; rows are queries and columns keys."""

    forward: Tiles
    """The forward pass: a program owns ``rows`` queries."""
    backward: Tiles
    """The backward pass: a program owns ``columns`` keys."""
    is_whole: bool
    """Whether a program of the backward pass holds all keys of a head at once."""
    may_run: bool = False
    """Whether one may take all tiles of keys of a head in turn, if the grid is large enough."""


FAMILIES = {(8, 0): 80, (8, 6): 86, (8, 9): 86, (9, 0): 90, (10, 0): 100, (10, 3): 100, (12, 0): 120, (12, 1): 120}
"""Maps compute capability to a column of the tables below; a card that is not here gets the smallest blocks."""

FORWARD = dict.fromkeys((80, 86, 90, 100, 120), (128, 64, 8, 3))
"""Queries, keys, warps, stages of the forward pass, 16 bits, heads up to 64 wide, sequences above 64."""

WHOLE = {
    32: dict.fromkeys((80, 86, 120), (32, 32, 4, 1)),
    64: {80: (32, 64, 4, 3), 86: (32, 64, 4, 3), 90: (64, 64, 4, 3), 100: (64, 64, 4, 3), 120: (32, 64, 4, 3)},
    128: {80: (32, 128, 8, 1), 86: (32, 128, 8, 3), 90: (64, 128, 8, 3), 100: (32, 128, 8, 3), 120: (32, 128, 8, 3)},
}
"""The backward pass that holds all keys of a head, by longest sequence; at 256 it spills on the cards left out."""

TILED = {80: (32, 128, 8, 3), 86: (32, 128, 8, 1), 90: (64, 128, 8, 3), 100: (32, 128, 8, 3), 120: (32, 128, 8, 3)}
"""The backward pass in tiles of keys, for longer sequences."""
RUNNING = (86, 90, 100)
"""Cards on which a program that takes these tiles in turn spills no registers."""


def attention_tiles(capability: tuple[int, int], *, head_width: int, max_seqlen: int, itemsize: int) -> AttentionTiles:
    """Return the launches for a device, a shape and a dtype, which is told by its bytes."""
    if itemsize == 4:  # float32 has no tensor cores here: for checks, not for speed
        warps = 8 if head_width > 64 else 4
        return AttentionTiles(Tiles(32, 32, warps), Tiles(16, 32, warps), is_whole=max_seqlen <= 32)
    if head_width > 64:
        return AttentionTiles(Tiles(128, 32, 8, stages=3), Tiles(32, 64, warps=8), is_whole=max_seqlen <= 64)
    family, shape = FAMILIES.get(capability, 86), f"{head_width} {min(max_seqlen, LONGEST)}"
    forward = Tiles(64, 64, warps=4, stages=2) if max_seqlen <= 64 else Tiles(*FORWARD[family])
    forward = forward.tuned(f"attention forward {shape}")
    for keys, by_family in WHOLE.items():
        if max_seqlen <= keys and family in by_family:
            backward = Tiles(*by_family[family]).tuned(f"attention backward {shape}")
            return AttentionTiles(forward, backward, is_whole=True)
    backward = Tiles(*TILED[family]).tuned(f"attention backward {shape}")
    return AttentionTiles(forward, backward, is_whole=False, may_run=family in RUNNING)


@dataclass(frozen=True)
class ThreeTiles:
    """Launches of attention whose backward pass goes by queries and by keys; rows are queries and columns keys.

    With rotary positions, ``queries`` and ``forward`` have the same rows, which are a multiple of the rows of ``keys``.
    With scores of positions, ``forward`` has a multiple of the rows of ``keys``, and ``keys`` a multiple of the columns
    of ``queries``.
    """

    forward: Tiles
    """The forward pass: a program owns ``rows`` queries."""
    queries: Tiles
    """The backward pass by queries, or the product of scores' gradients with keys: a program owns ``rows`` queries."""
    keys: Tiles
    """The backward pass by keys and values: a program owns ``columns`` keys."""
    may_turn: bool = field(default=True, kw_only=True)
    """Whether queries and keys may be turned when they are loaded, if there is a window."""


FLOAT32 = ((32, 32), (32, 32), (16, 32))
"""Rows and columns of the three in float32, which has no tensor cores here: for checks, not for speed."""
ROTARY = {
    80: ((128, 64, 8, 3), (128, 64, 8, 3), (32, 128, 8, 3)),
    86: ((128, 64, 8, 3), (128, 64, 8, 3), (32, 128, 8, 3)),
    90: ((128, 64, 8, 3), (128, 64, 8, 3), (64, 128, 8, 3)),
    100: ((128, 64, 8, 1), (128, 64, 8, 3), (32, 128, 8, 3)),
    120: ((128, 64, 8, 3), (128, 32, 8, 3), (32, 128, 8, 3)),
}
"""Queries, keys, warps, stages of the three passes with rotary positions, 16 bits, heads up to 64 wide."""
ROTARY_WINDOW = {
    80: ((64, 64, 4, 3), (64, 64, 4, 3), (32, 64, 4, 3)),
    86: ((64, 64, 4, 3), (64, 64, 4, 3), (32, 64, 4, 3)),
    90: ((64, 64, 4, 3), (64, 64, 4, 3), (64, 64, 4, 3)),
    100: ((64, 64, 4, 3), (64, 64, 4, 3), (32, 64, 4, 3)),
    120: ((64, 64, 4, 3), (64, 64, 4, 3), (32, 64, 4, 3)),
}
"""The same with a window: of 128 tokens, 64 queries meet 192 keys where each sees 129, and 128 queries 256."""
WINDOW_DROPOUT_KEYS = (32, 64, 4, 3)
"""The pass by keys with a window and dropout: tiles of 64 queries spill registers on sm_90."""
TURNING = (90, 100)
"""Cards on which kernels with a window may turn queries and keys when they load them without spilling registers."""


def rotary_tiles(
    capability: tuple[int, int], *, head_width: int, has_window: bool, has_dropout: bool, itemsize: int
) -> ThreeTiles:
    """Return the launches for a device, a shape and a dtype, which is told by its bytes."""
    if itemsize == 4:
        return ThreeTiles(*(Tiles(*sizes, 8 if head_width > 64 else 4) for sizes in FLOAT32))
    family = FAMILIES.get(capability, 86)
    may_turn = family in TURNING
    if head_width > 64:
        wide = ((64, 32, 4, 3), (64, 32, 8, 3), (32, 64 if may_turn else 32, 8, 3))
        return ThreeTiles(*(Tiles(*numbers) for numbers in wide), may_turn=may_turn)
    forward, queries, keys = (ROTARY_WINDOW if has_window else ROTARY)[family]
    if has_window and has_dropout:
        keys = WINDOW_DROPOUT_KEYS
    view = f"{head_width} {'window' if has_window else 'all'}"
    launches = {"forward": forward, "queries": queries, "keys": keys}
    tiles = (Tiles(*numbers).tuned(f"rotary {name} {view}") for name, numbers in launches.items())
    return ThreeTiles(*tiles, may_turn=may_turn)


DISENTANGLED = {
    80: ((64, 32, 4, 3), (64, 64, 4, 3), (32, 64, 4, 1)),
    86: ((64, 32, 4, 3), (64, 64, 4, 3), (32, 64, 4, 1)),
    90: ((64, 32, 4, 3), (64, 64, 4, 3), (32, 64, 4, 3)),
    100: ((64, 32, 4, 1), (64, 64, 4, 3), (32, 64, 4, 3)),
    120: ((64, 32, 4, 3), (64, 64, 4, 3), (32, 64, 4, 1)),
}
"""Queries, keys, warps, stages of the three launches with scores of positions, 16 bits, heads up to 64 wide."""
DISTANCES = Tiles(32, 128, warps=4)
"""Tokens and positions of a program that adds up the gradients of scores over distances."""


def disentangled_tiles(capability: tuple[int, int], *, head_width: int, itemsize: int) -> ThreeTiles:
    """Return the launches for a device, a shape and a dtype, which is told by its bytes."""
    if itemsize == 4:
        return ThreeTiles(*(Tiles(*sizes, 8 if head_width > 64 else 4) for sizes in FLOAT32))
    if head_width > 64:
        return ThreeTiles(Tiles(64, 32, warps=8), Tiles(64, 32, warps=4), Tiles(32, 64, warps=8, stages=3))
    launches = zip(("forward", "queries", "keys"), DISENTANGLED[FAMILIES.get(capability, 86)], strict=True)
    return ThreeTiles(*(Tiles(*sizes).tuned(f"disentangled {name} {head_width}") for name, sizes in launches))


WAVES = 2
"""Programs per multiprocessor from which on they may be long: with fewer, half of the card could wait for the rest."""


LONGEST_IN_PARTS = 1024
"""Length up to which each tile of keys may write a part of attention's dQ, 4 bytes per number. The parts of 64 tiles,
at 8,192 tokens, would take 8.6 GB for 32,768 tokens of BERT-Large. Above this length a program takes all tiles of a
head, whatever the grid, and even if it spills registers."""


def fills_card(programs: int, device: torch.device) -> bool:
    """Return whether ``programs`` long programs, one at a time on a multiprocessor, keep a device busy."""
    return programs >= WAVES * multiprocessors_of(device)


LAMB_CHUNK, LAMB_BLOCK, LAMB_WARPS = 16_384, 1024, 4
"""Elements of a program, elements that it works on at once, and its warps."""


def cross_entropy_tiles(classes: int) -> Tiles:
    """Return a tile that is a part of one row, 16 elements per thread."""
    columns = min(4096, power_of_two(classes))
    return Tiles(1, columns, warps=max(1, min(8, columns // 512))).tuned(f"cross_entropy {classes}")
