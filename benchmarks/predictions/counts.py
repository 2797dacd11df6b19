"""Counts the work of a training step on a GPU that is not there: products, bytes, and tiles of attention's scores.

The step is the trainer's own, on the fake device of ``tests/fake_cuda``: every operation of torch and every launch of a
kernel passes here with its shapes. Kernels read and write each tensor that they are given once, but for the updates in
place of ``TWICE``; partial sums that a program keeps in the cache (``CACHED``) do not count.
"""

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from fake_cuda.fake_gpu import fake_engine, fake_gpu, ops_of
from fake_cuda.fake_step import step_on
from fake_cuda.watch import Watch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from benchmarks.gpu.training import PARTS
from megabert.models.build import build_model
from megabert.settings.config.deepspeed import DEFAULT_BUCKET_SIZE
from megabert.settings.config.model import ModelConfig

IN_FP8 = "_scaled_mm"
FACTORS = dict.fromkeys(("mm", "addmm", "bmm", "baddbmm"), slice(-2, None)) | {IN_FP8: slice(2)}
"""Products, and which of an operation's tensors are their factors."""
OTHERS = "other operations"
TWICE = {"lamb_update": ("exp_avg_ptr", "exp_avg_sq_ptr", "gradient_ptr"), "lamb_apply": ("weights_ptr",)}
"""Tensors that a kernel reads and writes."""
CACHED = {"attention_backward": "sums_ptr"}
FREE = re.compile(
    "view|detach|alias|empty|new_empty|split|slice|select|expand|"
    "unsqueeze|as_strided|narrow|transpose|resolve_conj|device"
)
"""Operations without a kernel: they look at a tensor in another way, ask it something, or allocate."""
OVERWRITING = ("copy_", "zero_", "fill_")
"""Operations whose result does not depend on what was there."""
GATHERING = ("embedding", "index_select", "gather")
"""Operations that read some rows of their first tensor."""
FLOPS_PER_ELEMENT = {
    "attention_forward": 4,
    "attention_backward": 10,
    "rotary_attention_forward": 4,
    "rotary_attention_backward_queries": 6,
    "rotary_attention_backward_keys": 8,
}
"""FLOPs of attention's products per element of the scores and number of a head's width: two for each product."""
BY_KEYS = ("attention_backward", "rotary_attention_backward_keys")
"""Kernels whose loop walks over the queries of one tile of keys; the others' walks over the keys of one of queries."""


@dataclass
class Work:
    """The work of all launches of one kernel, or of all calls of one operation."""

    launches: float = 0
    bytes: float = 0
    flops: float = 0
    tiles: float = 0
    """Tiles of attention's scores: iterations of its loop."""
    passes: float = 0
    """Passes through the loop, each over all tiles of one block of queries or keys."""

    def add(self, other: "Work", times: float = 1) -> None:
        """Add the counts of another, ``times`` over."""
        self.launches += times * other.launches
        self.bytes += times * other.bytes
        self.flops += times * other.flops
        self.tiles += times * other.tiles
        self.passes += times * other.passes


@dataclass(frozen=True, order=True)
class Label:
    """What work belongs to: a part of the step, the kernel or operation, and attention's kind of loop."""

    part: str
    name: str
    loop: str = ""


@dataclass
class Counted(Watch):
    """Watches a step, and adds up its work."""

    length: int = 0
    work: dict[Label, Work] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = super().__torch_dispatch__(function, types, args, kwargs)
        name = function.overloadpacket.__name__
        moved = moved_bytes(function, args, kwargs, out)
        if moved and any(isinstance(leaf, Tensor) and leaf.device.type == "cuda" for leaf in [*args, out]):
            factors = [leaf for leaf in args if isinstance(leaf, Tensor)][FACTORS.get(name, slice(0))]
            flops = 2 * factors[0].numel() * factors[1].shape[-1] if factors else 0
            self._add(Label("matrix products" if flops else OTHERS, name), Work(1, moved, flops))
        return out

    def launch(self, kernel: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> None:
        """Count a launch of Triton."""
        super().launch(kernel, *arguments, grid=grid, warmup=warmup, **options)
        name = kernel.fn.__name__
        given = dict(zip(kernel.arg_names, arguments, strict=False)) | options
        spans = {}
        for argument, tensor in given.items():
            is_cached = given.get("IS_RUNNING") and argument == CACHED.get(name)
            if isinstance(tensor, Tensor) and not is_cached:
                spans[tensor.untyped_storage()._cdata, tensor.storage_offset()] = tensor.nbytes
        moved = sum(spans.values()) + sum(given[argument].nbytes for argument in TWICE.get(name, ()))
        part = next((part for part, marks in PARTS.items() if any(mark in name for mark in marks)), OTHERS)
        if name not in FLOPS_PER_ELEMENT:
            self._add(Label(part, name), Work(1, moved))
            return
        loop, tiles = self._scores(given)
        flops = FLOPS_PER_ELEMENT[name] * tiles * given["ROWS"] * given["COLUMNS"] * given["HEAD"]
        block = given["COLUMNS" if name in BY_KEYS else "ROWS"]
        passes = given["tokens"] // self.length * given["heads"] * -(-self.length // block)
        self._add(Label(part, name, loop), Work(1, moved, flops, tiles, passes))

    def _add(self, label: Label, work: Work) -> None:
        self.work.setdefault(label, Work()).add(work)

    def _scores(self, given: dict[str, Any]) -> tuple[str, int]:
        """Return which loop of kernel_budget.json a launch of attention runs, and how many tiles it computes."""
        reach, rows, columns = given.get("REACH", 0), given["ROWS"], given["COLUMNS"]
        if "REACH" in given:
            loop = "bf16 12x64 window 128" if reach else "bf16 12x64 global"
        else:
            few = "" if given.get("IS_RUNNING", True) or given.get("IS_WHOLE") else " few"
            loop = f"bf16 16x64 {next(known for known in (64, 128, 512) if self.length <= known)}{few}"
        return loop, given["tokens"] // self.length * given["heads"] * seen_tiles(self.length, rows, columns, reach)


def seen_tiles(length: int, rows: int, columns: int, reach: int) -> int:
    """Return the tiles of ``rows`` by ``columns`` that are computed of one sequence and head.

    Args:
        length: Length of the sequence.
        rows: Queries of a tile.
        columns: Keys of a tile.
        reach: Keys that a query sees to each side; 0: all.
    """
    total = 0
    for first in range(0, length, rows):
        low = max(0, first - reach) // columns if reach else 0
        end = min(length, first + rows + reach) if reach else length
        total += -(-end // columns) - low
    return total


def step_work(
    model: dict[str, Any],
    *,
    tokens: int,
    length: int,
    micro_steps: int,
    capability: tuple[int, int],
    multiprocessors: int,
    in_fp8: bool = False,
) -> tuple[dict[Label, Work], int]:
    """Return the work of one step on one GPU, ZeRO-1 and LAMB, and the most bytes of its memory.

    Both are of two short steps: each further micro-step is equal.

    Args:
        model: Fields of ``ModelConfig``.
        tokens: Packed tokens of a micro-step, in sequences of full length.
        length: Length of the sequences.
        micro_steps: Micro-steps of the step.
        capability: Compute capability of the GPU, which chooses tiles.
        multiprocessors: Number of its multiprocessors.
        in_fp8: Whether encoder layers multiply in 8 bits.
    """
    config = ModelConfig(**model)
    watch = Counted(length=length)
    counts = []
    with fake_gpu(watch, 1, capability=capability, multiprocessors=multiprocessors), watch:
        engine, world = fake_engine(
            lambda: build_model(config, in_fp8=in_fp8, ops=ops_of(config.family)), bucket_size=DEFAULT_BUCKET_SIZE
        )
        for number in (1, 1, 2):  # the first one makes tables
            watch.work = {}
            step_on(engine, world, micro_steps=number, tokens=tokens, length=length)
            counts.append(watch.work)
    one, two = counts[1:]
    total: dict[Label, Work] = {}
    for label, work in two.items():
        total[label] = Work()
        total[label].add(work, micro_steps - 1)
        total[label].add(one.get(label, Work()), 2 - micro_steps)
    return total, watch.memory.peak


def by_part(work: dict[Label, Work], field_name: str) -> Counter[str]:
    """Return one number of the work, added up by part."""
    sums: Counter[str] = Counter()
    for label, each in work.items():
        sums[label.part] += getattr(each, field_name)
    return sums


def moved_bytes(function: Any, args: Any, kwargs: Any, result: Any) -> int:
    """Return the bytes of the tensors that an operation of torch reads and writes; 0 if it has no kernel."""
    name = function.overloadpacket.__name__
    if function.is_view or FREE.match(name) or "c10d" in str(function):
        return 0
    given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    written = args[0] if result is None else result  # operations on lists in place return nothing
    made = [leaf for leaf in tree_leaves(written) if isinstance(leaf, Tensor)]
    if name in GATHERING:  # of the first tensor it reads no more than it returns
        given[0] = made[0]
    moved = sum(leaf.nbytes for leaf in given + made)
    known = {id(leaf) for leaf in given}
    if name in OVERWRITING and any(id(leaf) in known for leaf in made):
        moved -= given[0].nbytes  # it is written only
    return moved


assert torch.version.cuda is None, "torch's build for GPUs has a guard of its own"
