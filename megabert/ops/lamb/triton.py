"""LAMB's two passes as Triton kernels over flat shards, one launch each however many parameters a flat holds.

A shard's segments are cut into chunks of at most CHUNK elements, sorted by parameter; a program does one chunk and
writes its sums of w^2 and u^2. A program per parameter then adds its chunks' sums in float64 in that order: no atomics.
"""

# X elements of a flat, G chunks, P parameters (slots)

import bisect
import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from megabert.ops.lamb.types import Coefficients, Passes, Segment
from megabert.ops.triton_support.input_checks import require
from megabert.ops.triton_support.tile_sizes import LAMB_BLOCK, LAMB_CHUNK, LAMB_WARPS


@triton.jit
def lamb_update(
    weights,
    gradient,
    exp_avg,
    exp_avg_sq,
    first_elements,
    counts,
    sums,
    chunks,
    beta1,
    beta2,
    one_minus_beta1,
    one_minus_beta2,
    eps,
    decay,
    exp_avg_scale,
    exp_avg_sq_scale,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Update the moments of one chunk, write its update over ``gradient``; ``sums`` is float64 of shape (2, G)."""
    chunk = tl.program_id(0)
    base = tl.load(first_elements + chunk)
    count = tl.load(counts + chunk)
    weight_squares = tl.zeros((BLOCK,), dtype=tl.float32)
    update_squares = tl.zeros((BLOCK,), dtype=tl.float32)
    for first in range(0, CHUNK, BLOCK):
        element = first + tl.arange(0, BLOCK)
        inside = element < count
        place = base + element
        w = tl.load(weights + place, mask=inside, other=0.0)
        g = tl.load(gradient + place, mask=inside, other=0.0)
        m = tl.load(exp_avg + place, mask=inside, other=0.0)
        v = tl.load(exp_avg_sq + place, mask=inside, other=0.0)
        m = beta1 * m + one_minus_beta1 * g
        v = beta2 * v + one_minus_beta2 * g * g
        u = (m * exp_avg_scale) / (tl.sqrt_rn(v * exp_avg_sq_scale) + eps) + decay * w
        tl.store(exp_avg + place, m, mask=inside)
        tl.store(exp_avg_sq + place, v, mask=inside)
        tl.store(gradient + place, u, mask=inside)
        weight_squares += w * w
        update_squares += tl.where(inside, u * u, 0.0)
    tl.store(sums + chunk, tl.sum(weight_squares.to(tl.float64), axis=0))
    tl.store(sums + chunks + chunk, tl.sum(update_squares.to(tl.float64), axis=0))


@triton.jit
def lamb_add_chunks(sums, slots, first_chunks, squares, chunks, parameters, BLOCK: tl.constexpr):
    """Add the sums of one parameter's chunks, ``first_chunks[i]`` to ``first_chunks[i + 1]``, to ``squares``."""
    piece = tl.program_id(0)
    row = tl.program_id(1)
    begin = tl.load(first_chunks + piece)
    end = tl.load(first_chunks + piece + 1)
    total = tl.zeros((BLOCK,), dtype=tl.float64)
    for first in range(begin, end, BLOCK):
        chunk = first + tl.arange(0, BLOCK)
        total += tl.load(sums + row * chunks + chunk, mask=chunk < end, other=0.0)
    target = squares + row * parameters + tl.load(slots + piece)
    tl.store(target, tl.load(target) + tl.sum(total, axis=0))


@triton.jit
def lamb_apply(weights, update, first_elements, counts, chunk_slots, scales, CHUNK: tl.constexpr, BLOCK: tl.constexpr):
    """Add ``scales[slot] * update`` to the weights of one chunk."""
    chunk = tl.program_id(0)
    base = tl.load(first_elements + chunk)
    count = tl.load(counts + chunk)
    scale = tl.load(scales + tl.load(chunk_slots + chunk)).to(tl.float32)
    for first in range(0, CHUNK, BLOCK):
        element = first + tl.arange(0, BLOCK)
        inside = element < count
        w = tl.load(weights + base + element, mask=inside, other=0.0)
        u = tl.load(update + base + element, mask=inside, other=0.0)
        tl.store(weights + base + element, w + scale * u, mask=inside)


@dataclass(frozen=True)
class Chunks:
    """Segments cut to size, sorted by slot."""

    first_elements: Tensor
    """Int64 of shape (G,)."""
    counts: Tensor
    """Int32 of shape (G,)."""
    chunk_slots: Tensor
    """Int32 of shape (G,)."""
    slots: Tensor
    """Int32, the slots that occur, ascending."""
    first_chunks: Tensor
    """Int32, one more than ``slots``: where each slot's chunks begin."""


@functools.lru_cache(maxsize=4096)
def cut(segments: tuple[Segment, ...], device: torch.device) -> Chunks:
    """Cut segments into chunks; made once for each flat, since segments never change during a run."""
    pieces = [
        (segment.slot, segment.offset + begin, min(LAMB_CHUNK, segment.numel - begin))
        for segment in segments
        for begin in range(0, segment.numel, LAMB_CHUNK)
    ]
    pieces.sort()
    chunk_slots = [slot for slot, _, _ in pieces]
    slots = sorted(set(chunk_slots))
    starts = [bisect.bisect_left(chunk_slots, slot) for slot in slots] + [len(pieces)]
    columns = (
        ([offset for _, offset, _ in pieces], torch.int64),
        ([count for _, _, count in pieces], torch.int32),
        (chunk_slots, torch.int32),
        (slots, torch.int32),
        (starts, torch.int32),
    )
    return Chunks(*(torch.tensor(values, dtype=dtype, device=device) for values, dtype in columns))


def compute_update(
    weights: Tensor,
    gradient: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    *,
    coefficients: Coefficients,
    segments: Sequence[Segment],
    squares: Tensor,
) -> None:
    """Pass 1 of ``api.compute_update``; elements of no segment are left alone, moments included."""
    require("lamb", weights, gradient, exp_avg, exp_avg_sq, dtypes=(torch.float32,))
    chunks = cut(tuple(segments), weights.device)
    number = chunks.counts.numel()
    if number == 0:
        return
    c = coefficients
    sums_2G = torch.empty(2, number, dtype=torch.float64, device=weights.device)
    lamb_update[(number,)](
        weights,
        gradient,
        exp_avg,
        exp_avg_sq,
        chunks.first_elements,
        chunks.counts,
        sums_2G,
        number,
        c.beta1,
        c.beta2,
        1.0 - c.beta1,
        1.0 - c.beta2,
        c.eps,
        c.weight_decay,
        c.exp_avg_scale,
        c.exp_avg_sq_scale,
        CHUNK=LAMB_CHUNK,
        BLOCK=LAMB_BLOCK,
        num_warps=LAMB_WARPS,
    )
    lamb_add_chunks[(chunks.slots.numel(), 2)](
        sums_2G, chunks.slots, chunks.first_chunks, squares, number, squares.shape[1], BLOCK=128, num_warps=1
    )


def apply_update(weights: Tensor, update: Tensor, *, segments: Sequence[Segment], scales: Tensor) -> None:
    """Pass 2 of ``api.apply_update``."""
    require("lamb", weights, update, dtypes=(torch.float32,))
    chunks = cut(tuple(segments), weights.device)
    if chunks.counts.numel():
        lamb_apply[(chunks.counts.numel(),)](
            weights,
            update,
            chunks.first_elements,
            chunks.counts,
            chunks.chunk_slots,
            scales.to(weights.device),
            CHUNK=LAMB_CHUNK,
            BLOCK=LAMB_BLOCK,
            num_warps=LAMB_WARPS,
        )


TRITON_PASSES = Passes(compute_update, apply_update)
