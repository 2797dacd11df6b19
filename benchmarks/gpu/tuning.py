"""Part `tuning`: attention's committed tiles and others that could win, by the search of ``megabert tune``.

Both passes are timed together. A faster tile goes into ops.triton_support.tile_sizes by hand: registers, spills and
waits are then held against its budget (tests/unit/ops), and parity is shown again.
"""

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.clock import median_ms
from benchmarks.gpu.rows import Row, Rows
from benchmarks.gpu.sizes import Sizes
from benchmarks.gpu.training import model_config, modern_config
from benchmarks.gpu.warm import compile_beside
from megabert.ops.proof.first_run import cases_of
from megabert.ops.proof.table import Shapes
from megabert.ops.proof.tuning import TunedLaunch, tune
from megabert.ops.triton_support import tuned_tiles
from megabert.settings.config.model import ModelConfig

Case = tuple[str, Shapes]
OTHERS: dict[str, tuple[tuned_tiles.Sizes, ...]] = {
    "attention forward": ((128, 64, 8, 3), (128, 64, 4, 3), (64, 64, 4, 3)),
    "attention backward": ((64, 128, 8, 3),),
}
"""Queries, keys, warps, stages, by launch: compiled for sm_90 they spill no registers, and every product of theirs is
made of whole warp groups."""
MOST_OTHERS = 1 + max(map(len, OTHERS.values()))


def candidates(name: str, committed: tuned_tiles.Sizes, **_: Any) -> list[tuned_tiles.Sizes]:
    """Return the tiles to try for a launch: two stages, with which the first card ran, and those of OTHERS."""
    found = ((*committed[:3], 2), *OTHERS.get(" ".join(name.split()[:2]), ()))
    return [sizes for sizes in found if sizes != committed]


def attention_cases(sizes: Sizes, dtype: torch.dtype) -> list[Case]:
    """Return attention of BERT-Large at its lengths, and of ModernBERT and of DeBERTa at one length each."""
    models: list[tuple[ModelConfig, tuple[int, ...]]] = [
        (model_config(sizes), sizes.lengths),
        (modern_config(sizes), sizes.rotary_lengths[:1]),
        (model_config(sizes, family="deberta-v2", position_buckets=sizes.span), sizes.disentangled_lengths[-1:]),
    ]
    cases = [case for model, lengths in models for case in cases_of([model], lengths, dtype)]
    return [case for case in cases if case[0].endswith("attention")]


def search(case: Case, sizes: Sizes, device: torch.device, **options: Any) -> Iterator[TunedLaunch]:
    """Yield the outcome for each launch of a case; the part's own deadline ends it."""
    with tempfile.TemporaryDirectory() as folder:
        yield from tune([case], device, Path(folder) / "tiles.json", tokens=sizes.tokens, minutes=60.0, **options)


def compile_share(sizes: Sizes, number: int, of: int) -> None:
    """Run every ``of``-th candidate for the sake of its kernels."""
    cases = attention_cases(sizes, torch.bfloat16)
    for case, place in [(case, place) for case in cases for place in range(MOST_OTHERS)][number::of]:

        def some(*launch: Any, place: int = place, **shape: Any) -> list[tuned_tiles.Sizes]:
            return candidates(*launch, **shape)[place : place + 1]

        with contextlib.suppress(Exception):
            list(search(case, sizes, torch.device("cuda"), candidates=some, time_ms=run_once))
            torch.cuda.empty_cache()


def run_once(call: Callable[[], object]) -> float:
    """Run a call, and let it be as fast as any other."""
    call()
    torch.cuda.synchronize()
    return 1.0


def case_row(case: Case, sizes: Sizes, device: torch.device) -> Row:
    """Return the milliseconds of each tile by launch, the committed tile first, and the fastest right one."""
    row: Row = {}
    time_ms = partial(median_ms, device=device, repeat_ms=40)
    for launch in search(case, sizes, device, candidates=candidates, time_ms=time_ms):
        times = {launch.committed: launch.committed_ms, **launch.times}
        row[launch.name] = {"x".join(map(str, tile)): round(ms, 4) for tile, ms in times.items()}
        if launch.best != launch.committed:
            row[launch.name]["best"] = "x".join(map(str, launch.best))
    return row


def measure(rows: Rows, device: torch.device, sizes: Sizes) -> None:
    """Fill the rows, one per op and length. Without a GPU there is no tile to choose."""
    compile_beside(compile_share, (sizes,), limit_s=0.6 * rows.remaining_s())
    for op, shapes in attention_cases(sizes, torch.bfloat16):
        row = partial(case_row, (op, shapes), sizes, device)
        rows.measure(f"{op} at {shapes.length}", row, is_peer=device.type != "cuda")
