"""Tile sizes for the device at hand, by measurement: what ``megabert tune`` does.

Each launch of a model's ops is timed with the committed tile and with candidates; the fastest one that passes the op's
small problems (``table.py``) goes into the file. The candidates of the command are the tile's neighbours, which differ
in one number; one that cannot fit into registers or shared memory is not compiled. The part `tuning` of the GPU runbook
(``benchmarks/gpu``) searches in a list of its own.
"""

import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch

from megabert.foundation.json_files import write_json
from megabert.ops.proof import problems
from megabert.ops.proof.problem import Problem
from megabert.ops.proof.table import Shapes, compare
from megabert.ops.triton_support.tuned_tiles import Sizes, TunedTiles, asked_for, identity, read_tiles, use

FREE = {
    "layer_norm forward": ("rows", "warps"),
    "layer_norm backward": ("warps", "stages"),
    "bias_gelu": ("rows", "columns", "warps"),
    "gelu_rows": ("rows", "warps"),
    "cross_entropy": ("columns", "warps"),
    "attention forward": ("columns", "warps", "stages"),
    "attention backward": ("rows", "warps", "stages"),
    "rotary forward": ("columns", "warps", "stages"),
    "rotary queries": ("columns", "warps", "stages"),
    "rotary keys": ("rows", "warps", "stages"),
    "disentangled forward": ("columns", "warps", "stages"),
    "disentangled keys": ("rows", "warps", "stages"),
    "disentangled queries": ("warps", "stages"),
}
"""The numbers of a launch's tile that may differ from the committed one; the others are tied to another launch."""
PLACES = {"rows": 0, "columns": 1, "warps": 2, "stages": 3}
MOST = {"rows": 64, "columns": 8192, "warps": 16, "stages": 4}
REGISTERS = 255
"""Registers of a thread on every card since compute capability 5.0, which a tile of float32 may not exceed."""
SHARED_BYTES = 99 * 1024
"""Shared memory of a block on the smallest cards, which is assumed if a device does not say."""
MARGIN = 0.98
"""A candidate has to take at most this share of the committed tile's time: less is noise."""
Call = Callable[[], object]


class TunedLaunch(NamedTuple):
    """The outcome for one launch."""

    name: str
    committed: Sizes
    best: Sizes
    committed_ms: float
    best_ms: float
    times: Mapping[Sizes, float]
    """Milliseconds of each candidate that was timed."""


def neighbours(name: str, committed: Sizes, *, head_width: int, device: torch.device) -> Iterator[Sizes]:
    """Yield the neighbours of a launch's tile that fit into registers and shared memory."""
    (free,) = (free for kind, free in FREE.items() if name.startswith(f"{kind} "))
    for field in free:
        place, value = PLACES[field], committed[PLACES[field]]
        for other in (value - 1, value + 1) if field == "stages" else (value // 2, value * 2):
            changed = list(committed)
            changed[place] = other
            rows, columns, warps, stages = changed
            sizes = (rows, columns, warps, stages)
            if 1 <= other <= max(MOST[field], value) and may_fit(name, sizes, head_width=head_width, device=device):
                yield sizes


def tune(
    cases: Sequence[tuple[str, Shapes]],
    device: torch.device,
    path: Path,
    *,
    tokens: int,
    minutes: float,
    candidates: Callable[..., Iterable[Sizes]] = neighbours,
    time_ms: Callable[[Call], float] | None = None,
    now: Callable[[], float] = time.monotonic,
) -> Iterator[TunedLaunch]:
    """Measure every launch that the file does not have yet, write the file after each, and yield the outcome.

    Args:
        cases: Ops of the models that are trained and their shapes, as ``first_run.cases_of`` returns them.
        device: The device, whose launches are tuned.
        path: The file; one of this device and this code is continued.
        tokens: Packed tokens of a timed call.
        minutes: After so long no further candidate is timed. A launch that is not finished then is left to the next
            call; until then it keeps the committed tile.
        candidates: Returns the tiles to try in place of a launch's, called as ``neighbours`` is.
        time_ms: Returns the milliseconds of a call; by default its median on the device.
        now: Clock in seconds.

    Raises:
        ConfigError: The file is damaged, or was made for another device, Triton or text of ``megabert/ops``.
    """
    use({})
    content = read_tiles(path, device) if path.exists() else TunedTiles(tiles={}, ms={}, **identity(device))
    deadline, measure = now() + 60 * minutes, time_ms or functools.partial(median_ms, device=device)
    for op, shapes in cases:
        for problem in timed_problems(op, shapes, tokens, torch.Generator(device).manual_seed(0)):
            call = prepared(problem, shapes.dtype)
            asked_for()
            call()  # compiles; an error of the committed tiles is the user's to see
            for name, committed in asked_for().items():
                if name in content.tiles:
                    continue
                if now() >= deadline:
                    return
                tiles = candidates(name, committed, head_width=shapes.hidden // shapes.heads, device=device)
                checked_by = (op, shapes, device)
                found = _tune_launch(name, (committed, tiles), call, checked_by, measure, lambda: now() >= deadline)
                if found is None:
                    return
                content = replace(
                    content,
                    tiles=content.tiles | {name: found.best},
                    ms=content.ms | {name: (found.committed_ms, found.best_ms)},
                )
                write_json(path, asdict(content), indent=1)
                yield found


def _tune_launch(
    name: str,
    tiles: tuple[Sizes, Iterable[Sizes]],
    call: Call,
    checked_by: tuple[str, Shapes, torch.device],
    measure: Callable[[Call], float],
    is_over: Callable[[], bool],
) -> TunedLaunch | None:
    """Return the outcome for one launch; None if the time is over before all candidates are timed."""
    committed, candidates = tiles
    committed_ms = measure(call)
    times: dict[Sizes, float] = {}
    try:
        for sizes in candidates:
            if is_over():
                return None
            use({name: sizes})
            try:
                times[sizes] = measure(call)
            except Exception:
                continue
        for sizes in sorted(times, key=lambda sizes: times[sizes]):
            if times[sizes] > MARGIN * committed_ms:
                break
            use({name: sizes})
            op, shapes, device = checked_by
            if all(row.passes for row in compare(op, "triton", shapes, device)):
                return TunedLaunch(name, committed, sizes, committed_ms, times[sizes], times)
    finally:
        use({})
    return TunedLaunch(name, committed, committed, committed_ms, committed_ms, times)


def may_fit(name: str, sizes: Sizes, *, head_width: int, device: torch.device) -> bool:
    """Return whether a tile may fit: its float32 elements into registers, and its loads into shared memory."""
    rows, columns, warps, stages = sizes
    if rows * columns > 32 * warps * REGISTERS:
        return False
    if not name.startswith(("attention", "rotary", "disentangled")):
        return True
    limit = SHARED_BYTES
    if device.type == "cuda":
        limit = getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", SHARED_BYTES)
    # Matrix products take at least 16 of each; keys and values of every stage lie in 16 bits beside the queries.
    inner, outer = (rows, columns) if name.split()[1] in ("backward", "keys") else (columns, rows)
    return min(rows, columns) >= 16 and 2 * head_width * (2 * stages * inner + outer) <= limit


def timed_problems(op: str, shapes: Shapes, tokens: int, generator: torch.Generator) -> Iterator[Problem]:
    """Yield a problem of many tokens for each kind of launch of an op that has tiles."""
    heads = {"heads": shapes.heads, "head_width": shapes.hidden // shapes.heads}
    lengths = [shapes.length] * max(1, tokens // shapes.length)
    if op == "layer_norm" and shapes.attention == "windowed":
        yield problems.add_layer_norm_problem((tokens, shapes.hidden), generator)
    elif op == "layer_norm":
        extras = ("bias", "dropout", "residual", "twice")
        yield problems.layer_norm_problem((tokens, shapes.hidden), generator, extras=extras)
    elif op == "attention":
        yield problems.attention_problem(lengths, generator, **heads)
    elif op == "rotary_attention":
        for reach in (None, shapes.reach):
            options: dict[str, Any] = {**heads, "reach": reach, "dropout": 0.0}
            yield problems.rotary_attention_problem(lengths, generator, **options)
    elif op == "disentangled_attention":
        positions: dict[str, Any] = {**heads, "span": shapes.span}
        yield problems.disentangled_attention_problem(lengths, generator, **positions)
    elif op in ("bias_gelu", "gated_gelu"):
        make = problems.bias_gelu_problem if op == "bias_gelu" else problems.gated_gelu_problem
        yield make((tokens, shapes.intermediate), generator, approximate=shapes.is_approximate)
    elif op == "fp8_casts":
        is_gated = shapes.attention == "windowed"
        shape, form = (tokens, shapes.intermediate * (1 + is_gated)), {"is_approximate": shapes.is_approximate}
        yield problems.gelu_of_product_problem(shape, generator, is_gated=is_gated, **form)
    elif op == "cross_entropy":
        rows, padded = max(8, tokens // 8), -(-shapes.classes // 64) * 64
        yield problems.cross_entropy_problem((rows, padded), generator, classes=shapes.classes)


def prepared(problem: Problem, dtype: torch.dtype) -> Call:
    """Return both passes of a problem's op on Triton's kernels."""
    leaves = {name: tensor.to(dtype).requires_grad_() for name, tensor in problem.tensors.items()}

    def call() -> None:
        out = problem.run(**leaves, backend="triton")
        assert isinstance(out, torch.Tensor)
        torch.autograd.grad(out, list(leaves.values()), torch.ones_like(out))

    return call


def median_ms(call: Call, *, device: torch.device, repeats: int = 11) -> float:
    """Return the median of some calls' milliseconds, after two that are not counted."""
    times = []
    for _ in range(2 + repeats):
        began = time.perf_counter()
        if device.type == "cuda":
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            call()
            last.record()
            last.synchronize()  # elapsed_time needs both events done
            times.append(float(first.elapsed_time(last)))
        else:
            call()
            times.append(1000 * (time.perf_counter() - began))
    return median(times[2:])
