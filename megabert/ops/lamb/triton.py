"""LAMB's two passes as Triton kernels over flat shards, one launch each however many parameters a flat holds.

A shard's fragments are cut into chunks of at most CHUNK elements, sorted by parameter. A program does one chunk and
writes its sums of w^2 (for StableAdamW, of the squared relative gradient) and u^2; then one program per parameter adds
up the sums of its chunks in that order, in float64. There are no atomic sums, so trust ratios repeat from run to run.

The clip factor is read from memory, so that the host can launch both passes before it knows the norm. A factor of 0
says that the gradient is not finite: chunks then count as empty, and nothing is written.
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

from megabert.ops.lamb.api import Coefficients, Passes, SlotFragment
from megabert.ops.triton_support.input_checks import require
from megabert.ops.triton_support.tile_sizes import LAMB_BLOCK, LAMB_CHUNK, LAMB_WARPS


@triton.jit(do_not_specialize=["chunks"])
def lamb_update(
    weights_ptr,  # master weights, float32, (elements,)
    gradient_ptr,  # gradient, float32, (elements,); becomes the update
    exp_avg_ptr,  # first moment, float32, (elements,), updated
    exp_avg_sq_ptr,  # second moment, float32, (elements,), updated
    first_elements_ptr,  # where each chunk starts, int64, (chunks,)
    counts_ptr,  # elements of each chunk, int32, (chunks,)
    sums_ptr,  # sums of w^2 and of u^2 of each chunk, float64, (2, chunks)
    chunks,  # how many there are
    beta1,  # decay rate of the first moment
    beta2,  # decay rate of the second moment
    one_minus_beta1,  # weight of the gradient; subtracted on the host, in float64
    one_minus_beta2,  # weight of its square, likewise
    eps,  # added to the root of the second moment
    decay,  # weight decay
    gradient_scale_ptr,  # factor on the gradient: clipping, and the mean over ranks; 0: no update; float64, one number
    exp_avg_scale,  # 1 / (1 - beta1^t), or 1 without bias correction
    exp_avg_sq_scale,  # 1 / (1 - beta2^t), likewise
    MEASURES_GRADIENT: tl.constexpr,  # sum up (g / max(sqrt(v), eps))^2 in place of w^2
    CHUNK: tl.constexpr,  # most elements of a chunk
    BLOCK: tl.constexpr,  # elements worked on at once
):
    """Update the moments of one chunk, write its update over the gradient, and sum up both squares."""
    chunk = tl.program_id(0)
    base = tl.load(first_elements_ptr + chunk)
    gradient_scale = tl.load(gradient_scale_ptr).to(tl.float32)
    count = tl.where(gradient_scale == 0.0, 0, tl.load(counts_ptr + chunk))
    measured_squares = tl.zeros((BLOCK,), dtype=tl.float32)
    update_squares = tl.zeros((BLOCK,), dtype=tl.float32)
    for first in range(0, CHUNK, BLOCK):
        element = first + tl.arange(0, BLOCK)
        mask = element < count
        offsets = base + element
        w = tl.load(weights_ptr + offsets, mask=mask, other=0.0)
        g = gradient_scale * tl.load(gradient_ptr + offsets, mask=mask, other=0.0)
        m = tl.load(exp_avg_ptr + offsets, mask=mask, other=0.0)
        v = tl.load(exp_avg_sq_ptr + offsets, mask=mask, other=0.0)
        # Adam's moments and step, with weight decay as part of the update (You et al. 2020, algorithm 2).
        m = beta1 * m + one_minus_beta1 * g
        v = beta2 * v + one_minus_beta2 * g * g
        u = (m * exp_avg_scale) / (tl.sqrt_rn(v * exp_avg_sq_scale) + eps) + decay * w
        tl.store(exp_avg_ptr + offsets, m, mask=mask)
        tl.store(exp_avg_sq_ptr + offsets, v, mask=mask)
        tl.store(gradient_ptr + offsets, u, mask=mask)
        # Past the end w is zero, but a quotient is 0 / eps, which is NaN where eps is 0.
        if MEASURES_GRADIENT:
            relative = g / tl.maximum(tl.sqrt_rn(v * exp_avg_sq_scale), eps)
            measured_squares += tl.where(mask, relative * relative, 0.0)
        else:
            measured_squares += w * w
        update_squares += tl.where(mask, u * u, 0.0)
    # Each element of a block has added up CHUNK / BLOCK numbers in float32; from here on sums are float64.
    tl.store(sums_ptr + chunk, tl.sum(measured_squares.to(tl.float64), axis=0))
    tl.store(sums_ptr + chunks + chunk, tl.sum(update_squares.to(tl.float64), axis=0))


@triton.jit(do_not_specialize=["chunks", "parameters"])
def lamb_add_chunks(
    sums_ptr,  # pass 1's sums of each chunk, float64, (2, chunks)
    slots_ptr,  # parameters that the flat tensor holds a part of, int32, (slots,)
    first_chunks_ptr,  # where the chunks of each of them start, int32, (slots + 1,)
    squares_ptr,  # result, added to its present values, float64, (2, parameters)
    chunks,  # how many there are
    parameters,  # columns of the result
    BLOCK: tl.constexpr,  # chunks added at once
):
    """Add up the sums of one parameter's chunks, each row by itself: of w^2 in row 0, of u^2 in row 1."""
    index = tl.program_id(0)
    row = tl.program_id(1)
    begin = tl.load(first_chunks_ptr + index)
    end = tl.load(first_chunks_ptr + index + 1)
    total = tl.zeros((BLOCK,), dtype=tl.float64)
    for first in range(begin, end, BLOCK):
        chunk = first + tl.arange(0, BLOCK)
        total += tl.load(sums_ptr + row * chunks + chunk, mask=chunk < end, other=0.0)
    target = squares_ptr + row * parameters + tl.load(slots_ptr + index)
    tl.store(target, tl.load(target) + tl.sum(total, axis=0))


@triton.jit
def lamb_apply(
    weights_ptr,  # master weights, float32, (elements,), changed
    update_ptr,  # the update of pass 1, in the gradient's place, float32, (elements,)
    first_elements_ptr,  # where each chunk starts, int64, (chunks,)
    counts_ptr,  # elements of each chunk, int32, (chunks,)
    chunk_slots_ptr,  # parameter of each chunk, int32, (chunks,)
    scales_ptr,  # -learning rate * trust ratio of each parameter, 0: no update, float64, (parameters,)
    rounded_ptr,  # the model's weights, which take the result in 16 bits, (elements,), or None
    CHUNK: tl.constexpr,  # most elements of a chunk
    BLOCK: tl.constexpr,  # elements worked on at once
):
    """Add ``scale * update`` to the weights of one chunk."""
    chunk = tl.program_id(0)
    base = tl.load(first_elements_ptr + chunk)
    scale = tl.load(scales_ptr + tl.load(chunk_slots_ptr + chunk)).to(tl.float32)
    count = tl.where(scale == 0.0, 0, tl.load(counts_ptr + chunk))
    for first in range(0, CHUNK, BLOCK):
        element = first + tl.arange(0, BLOCK)
        mask = element < count
        w = tl.load(weights_ptr + base + element, mask=mask, other=0.0)
        u = tl.load(update_ptr + base + element, mask=mask, other=0.0)
        w += scale * u
        tl.store(weights_ptr + base + element, w, mask=mask)
        if rounded_ptr is not None:
            tl.store(rounded_ptr + base + element, w.to(rounded_ptr.dtype.element_ty), mask=mask)


@dataclass(frozen=True)
class Chunks:
    """Fragments cut to size, sorted by slot (parameter)."""

    first_elements: Tensor
    """Int64 of shape (G,), where each chunk starts in the flat tensor."""
    counts: Tensor
    """Int32 of shape (G,), elements of each chunk."""
    chunk_slots: Tensor
    """Int32 of shape (G,), the slot of each chunk."""
    slots: Tensor
    """Int32, the slots that occur, in ascending order."""
    first_chunks: Tensor
    """Int32, where the chunks of each slot start, and at the end their number."""


@functools.lru_cache(maxsize=4096)
def cut(fragments: tuple[SlotFragment, ...], device: torch.device) -> Chunks:
    """Cut fragments into chunks, once for each flat tensor: its fragments never change during a run."""
    cuts = [
        (fragment.slot, fragment.offset + begin, min(LAMB_CHUNK, fragment.numel - begin))
        for fragment in fragments
        for begin in range(0, fragment.numel, LAMB_CHUNK)
    ]
    cuts.sort()
    # Sorted by slot, the chunks of a parameter follow each other: the first of each says where its chunks start.
    chunk_slots = [slot for slot, _, _ in cuts]
    slots = sorted(set(chunk_slots))
    starts = [bisect.bisect_left(chunk_slots, slot) for slot in slots] + [len(cuts)]
    offsets, counts = ([chunk[column] for chunk in cuts] for column in (1, 2))
    tables = (counts, chunk_slots, slots, starts)
    first_elements = torch.tensor(offsets, dtype=torch.int64, device=device)
    return Chunks(first_elements, *(torch.tensor(table, dtype=torch.int32, device=device) for table in tables))


def compute_update(
    weights: Tensor,
    gradient: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    *,
    coefficients: Coefficients,
    fragments: Sequence[SlotFragment],
    squares: Tensor,
) -> None:
    """Run pass 1, of ``api.Passes``; elements of no fragment are left alone, moments included."""
    require("lamb", weights, gradient, exp_avg, exp_avg_sq, dtypes=(torch.float32,))
    chunks = cut(tuple(fragments), weights.device)
    number = chunks.counts.numel()
    if number == 0:
        return
    c, scale = coefficients, coefficients.gradient_scale
    if not isinstance(scale, Tensor):
        scale = torch.full((), scale, dtype=torch.float64, device=weights.device)
    sums_2G = torch.empty(2, number, dtype=torch.float64, device=weights.device)
    lamb_update[(number,)](
        *(weights, gradient, exp_avg, exp_avg_sq, chunks.first_elements, chunks.counts, sums_2G, number),
        *(c.beta1, c.beta2, 1.0 - c.beta1, 1.0 - c.beta2, c.eps, c.weight_decay),
        *(scale, c.exp_avg_scale, c.exp_avg_sq_scale),
        MEASURES_GRADIENT=c.measures_gradient,
        CHUNK=LAMB_CHUNK,
        BLOCK=LAMB_BLOCK,
        num_warps=LAMB_WARPS,
    )
    lamb_add_chunks[(chunks.slots.numel(), 2)](
        sums_2G, chunks.slots, chunks.first_chunks, squares, number, squares.shape[1], BLOCK=128, num_warps=1
    )


def apply_update(
    weights: Tensor, update: Tensor, *, fragments: Sequence[SlotFragment], scales: Tensor, rounded: Tensor | None = None
) -> None:
    """Run pass 2 of ``api.Passes``."""
    require("lamb", weights, update, dtypes=(torch.float32,))
    chunks = cut(tuple(fragments), weights.device)
    if chunks.counts.numel():
        lamb_apply[(chunks.counts.numel(),)](
            *(weights, update, chunks.first_elements, chunks.counts, chunks.chunk_slots),
            *(scales.to(weights.device), rounded),
            CHUNK=LAMB_CHUNK,
            BLOCK=LAMB_BLOCK,
            num_warps=LAMB_WARPS,
        )


TRITON_PASSES = Passes(compute_update, apply_update)
