"""Launch configurations of ops.triton_support.tile_sizes against others, by kernel: what the table should say.

Only here is anything tuned. A better configuration goes into the table by hand: registers, spills and waits are then
held against its budget (tests/unit/ops), parity is shown again. The first of attention's configurations has two stages,
with which the first card ran.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch

from benchmarks.gpu.calls import (
    Call,
    attention_call,
    bias_gelu_call,
    cross_entropy_call,
    disentangled_call,
    lamb_call,
    layer_norm_call,
    rotary_call,
)
from benchmarks.gpu.clock import median_ms
from benchmarks.gpu.rows import Row, Rows
from benchmarks.gpu.sizes import Sizes
from benchmarks.gpu.warm import compile_beside
from megabert.ops.triton_support import tile_sizes as tiles
from megabert.ops.triton_support.tile_sizes import Tiles


@dataclass(frozen=True)
class Kernel:
    """One launch and what to try for it."""

    name: str
    others: Sequence[tuple[int, ...]]
    """Configurations besides the committed one."""
    use: Callable[[tuple[int, ...]], AbstractContextManager[Any]]
    """Configuration -> context in which it is the table's."""
    prepare: Callable[[Sizes, torch.device], Call]
    """Return what is timed; called in that context."""


def in_table(table: dict[int, tuple[int, ...]]) -> Callable[[tuple[int, ...]], AbstractContextManager[Any]]:
    """Return what puts a configuration into a table of ``tiles`` for the card that is here."""
    return lambda configuration: mock.patch.dict(table, {family(): configuration})


def in_table_of_passes(table: dict[int, Any], place: int) -> Callable[[tuple[int, ...]], AbstractContextManager[Any]]:
    """Return what puts a configuration in one of a card's three places of a table of ``tiles`` for three passes."""

    def use(configuration: tuple[int, ...]) -> AbstractContextManager[Any]:
        passes = list(table[family()])
        passes[place] = configuration
        return mock.patch.dict(table, {family(): tuple(passes)})

    return use


def family() -> int:
    """Return the column of this card."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return tiles.FAMILIES.get(tiles.capability_of(device), 86)


@contextlib.contextmanager
def replaced(module: str, **values: Any) -> Iterator[None]:
    """Give names of an op's module other values, if the op has kernels."""
    with contextlib.ExitStack() as stack:
        for name, value in values.items():
            stack.enter_context(mock.patch(f"megabert.ops.{module}.triton.{name}", value))
        yield


@contextlib.contextmanager
def backward_launch(configuration: tuple[int, ...]) -> Iterator[None]:
    """Use (queries, keys, warps, stages, whether a program takes all tiles of keys in turn)."""
    *tile, is_running = configuration
    with (
        mock.patch.dict(tiles.TILED, {family(): tuple(tile)}),
        mock.patch.object(tiles, "RUNNING", (*tiles.RUNNING, family())),  # spilling or not, the row says so by its time
        replaced("attention.dense", fills_card=lambda *_: bool(is_running)),
    ):
        yield


def layer_norm_forward(configuration: tuple[int, ...]) -> AbstractContextManager[None]:
    """Use (rows, warps)."""
    rows, warps = configuration
    committed = tiles.layer_norm_tiles
    return replaced(
        "layer_norm",
        layer_norm_tiles=lambda width: (Tiles(rows, tiles.power_of_two(width), warps), committed(width)[1]),
    )


def layer_norm_backward(configuration: tuple[int, ...]) -> AbstractContextManager[None]:
    """Use (warps, stages, programs a multiprocessor)."""
    warps, stages, programs = configuration
    committed = tiles.layer_norm_tiles
    return replaced(
        "layer_norm",
        layer_norm_tiles=lambda width: (committed(width)[0], Tiles(1, tiles.power_of_two(width), warps, stages)),
        LAYER_NORM_PROGRAMS=programs,
    )


def bias_gelu_launch(configuration: tuple[int, ...]) -> AbstractContextManager[None]:
    """Use (rows, columns, warps, programs a multiprocessor in the backward pass)."""
    rows, columns, warps, programs = configuration
    return replaced("bias_gelu", bias_gelu_tiles=lambda width: Tiles(rows, columns, warps), BIAS_GELU_PROGRAMS=programs)


def cross_entropy_launch(configuration: tuple[int, ...]) -> AbstractContextManager[None]:
    """Use (columns, warps)."""
    return replaced("cross_entropy", cross_entropy_tiles=lambda classes: Tiles(1, *configuration))


@contextlib.contextmanager
def lamb_launch(configuration: tuple[int, ...]) -> Iterator[None]:
    """Use (chunk, block, warps)."""
    chunk, block, warps = configuration
    from megabert.ops.lamb.triton import cut

    cut.cache_clear()  # fragments are cut by chunk
    with replaced("lamb", LAMB_CHUNK=chunk, LAMB_BLOCK=block, LAMB_WARPS=warps):
        yield
    cut.cache_clear()


SHORT, LONG = 0, 1
KERNELS = (
    *(
        Kernel(
            f"attention forward, {('shorter', 'longer')[place]} length (queries, keys, warps, stages)",
            ((128, 64, 8, 2), (128, 64, 4, 3), (64, 64, 4, 3), (64, 128, 4, 2), (128, 32, 4, 3)),
            in_table(tiles.FORWARD),
            functools.partial(attention_call, place=place, is_backward=False),
        )
        for place in (SHORT, LONG)
    ),
    Kernel(
        "attention backward, all of 128 keys at once (queries, keys, warps, stages)",
        ((64, 128, 8, 2), (64, 128, 8, 1), (32, 128, 8, 2), (32, 128, 8, 3)),
        in_table(tiles.WHOLE[128]),
        functools.partial(attention_call, place=SHORT, is_backward=True),
    ),
    Kernel(
        "attention backward, key tiles (queries, keys, warps, stages, whether a program takes all tiles)",
        (
            *((64, 128, 8, 2, 1), (64, 128, 8, 3, 0), (64, 128, 8, 2, 0), (64, 128, 8, 1, 1), (128, 64, 8, 2, 1)),
            *((32, 128, 8, 2, 1), (32, 128, 8, 3, 1)),
        ),
        backward_launch,
        functools.partial(attention_call, place=LONG, is_backward=True),
    ),
    Kernel(
        "layer_norm forward (rows, warps)",
        ((1, 2), (1, 4), (2, 2), (2, 4)),
        layer_norm_forward,
        functools.partial(layer_norm_call, is_backward=False),
    ),
    Kernel(
        "layer_norm backward (warps, stages, programs)",
        ((4, 1, 4), (4, 3, 4), (4, 2, 3), (4, 2, 5), (4, 2, 8), (8, 2, 2), (8, 2, 4)),
        layer_norm_backward,
        functools.partial(layer_norm_call, is_backward=True),
    ),
    *(
        Kernel(
            f"bias_gelu {'backward' if is_backward else 'forward'} (rows, columns, warps, programs)",
            others,
            bias_gelu_launch,
            functools.partial(bias_gelu_call, is_backward=is_backward),
        )
        for is_backward, others in (
            (False, ((4, 256, 4, 16), (4, 512, 4, 16), (16, 256, 8, 16), (2, 1024, 4, 16))),
            (
                True,
                ((8, 256, 4, 7), (8, 256, 4, 14), (8, 256, 4, 28), (4, 256, 4, 16), (4, 512, 4, 14), (16, 256, 8, 7)),
            ),
        )
    ),
    Kernel(
        "cross_entropy, both ways (columns, warps)",
        ((2048, 4), (4096, 4), (8192, 8), (8192, 16)),
        cross_entropy_launch,
        cross_entropy_call,
    ),
    Kernel(
        "lamb, both passes (chunk, block, warps)",
        ((16_384, 512, 4), (16_384, 1024, 8), (16_384, 2048, 8), (8192, 1024, 4), (32_768, 1024, 4)),
        lamb_launch,
        lamb_call,
    ),
    *(
        Kernel(
            f"rotary attention {name}, {'window' if has_window else 'all keys'} (queries, keys, warps, stages)",
            others,
            in_table_of_passes(tiles.ROTARY_WINDOW if has_window else tiles.ROTARY, place),
            functools.partial(rotary_call, has_window=has_window, is_backward=place > 0),
        )
        for has_window, name, place, others in (
            (True, "forward", 0, ((64, 64, 4, 1), (64, 64, 4, 2))),
            (True, "backward by queries", 1, ((64, 64, 4, 1), (64, 64, 4, 2))),
            (True, "backward by keys", 2, ((64, 64, 4, 1), (64, 64, 4, 2), (32, 64, 4, 3))),
            (False, "forward", 0, ((128, 64, 8, 2),)),
            (False, "backward by queries", 1, ((128, 64, 8, 2),)),
            (False, "backward by keys", 2, ((64, 128, 8, 2), (32, 128, 8, 3))),
        )
    ),
    *(
        Kernel(
            f"disentangled attention {name} (queries, keys, warps, stages)",
            others,
            in_table_of_passes(tiles.DISENTANGLED, place),
            functools.partial(disentangled_call, is_backward=place > 0),
        )
        for name, place, others in (
            ("forward", 0, ((64, 32, 4, 1), (64, 64, 4, 1))),
            ("backward by keys", 1, ((32, 64, 4, 1), (64, 64, 4, 1))),
            ("backward by queries", 2, ((64, 64, 4, 1), (64, 64, 4, 2))),
        )
    ),
)


def cases() -> list[tuple[Kernel, tuple[int, ...] | None]]:
    """Return every kernel with None, the committed configuration, and with each other one."""
    return [(kernel, configuration) for kernel in KERNELS for configuration in (None, *kernel.others)]


def context(kernel: Kernel, configuration: tuple[int, ...] | None) -> AbstractContextManager[Any]:
    """Return the context of a case."""
    return contextlib.nullcontext() if configuration is None else kernel.use(configuration)


def compile_share(sizes: Sizes, number: int, of: int) -> None:
    """Run every ``of``-th case for the sake of its kernel."""
    for kernel, configuration in cases()[number::of]:
        with contextlib.suppress(Exception), context(kernel, configuration):
            kernel.prepare(sizes, torch.device("cuda"))()
            torch.cuda.synchronize()
            torch.cuda.empty_cache()


def timed(kernel: Kernel, configuration: tuple[int, ...] | None, sizes: Sizes, device: torch.device) -> Row:
    """Return the time of a case."""
    with context(kernel, configuration):
        return {"ms": round(median_ms(kernel.prepare(sizes, device), device, repeat_ms=40), 4)}


def measure(rows: Rows, device: torch.device, sizes: Sizes) -> None:
    """Fill the rows; a configuration that does not fit the card is not an error."""
    compile_beside(compile_share, (sizes,), limit_s=0.6 * rows.remaining_s())
    for kernel in KERNELS:
        found: dict[str, float] = {}
        for configuration in (None, *kernel.others):
            label = "committed" if configuration is None else str(configuration)
            row = rows.measure(
                f"{kernel.name}: {label}",
                lambda kernel=kernel, configuration=configuration: timed(kernel, configuration, sizes, device),
                is_peer=configuration is not None,
            )
            if row is not None and "ms" in row:
                found[label] = row["ms"]
        if "committed" in found:
            best = min(found, key=lambda label: found[label])
            gain = round(100 * (1 - found[best] / found["committed"]), 1)
            rows.measure(f"{kernel.name}: best", lambda best=best, gain=gain: {"best": best, "gain_pct": gain})
