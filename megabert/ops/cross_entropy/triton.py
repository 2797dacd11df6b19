"""``cross_entropy`` as Triton kernels: one pass over a row each way, and one number per row kept between them.

Forward (online softmax: Milakov & Gimelshein 2018) keeps a running maximum m and the sum of exp(x - m) over blocks of
classes; loss = m + log(sum) - x[label], and a row is right if x[label] >= m.
Backward: dx = (exp(x - logsumexp) - onehot) * grad of the row's loss, zero in rows that do not count.
"""

# M predicted positions, V classes

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from megabert.ops.triton_support.input_checks import require
from megabert.ops.triton_support.tile_sizes import cross_entropy_tiles


@triton.jit
def cross_entropy_forward(
    logits_ptr,  # unnormalised scores, (rows, classes); -inf excludes a class
    labels_ptr,  # class of each row, int64, (rows,); negative: the row does not count
    log_sums_ptr,  # logsumexp of each row, float32, (rows,), for the backward pass
    losses_ptr,  # loss of each row in nats, float32, (rows,)
    correct_ptr,  # 1 if no logit is above the label's, int64, (rows,)
    classes,  # columns of a row
    COLUMNS: tl.constexpr,  # classes read at once
):
    """Write the logsumexp and the loss of one row, and whether it is right."""
    row = tl.program_id(0)
    logits_ptr += row.to(tl.int64) * classes
    label = tl.load(labels_ptr + row)

    # One pass over the row. When a block raises the maximum, the sum so far is scaled down to the new one.
    highest = float("-inf")
    total = 0.0
    for first in range(0, classes, COLUMNS):
        cols = first + tl.arange(0, COLUMNS)
        x = tl.load(logits_ptr + cols, mask=cols < classes, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(highest, tl.max(x, axis=0))
        # While only excluded classes were seen the maximum is -inf, and -inf - -inf would be NaN.
        base = tl.where(higher == float("-inf"), 0.0, higher)
        total = total * tl.exp(highest - base) + tl.sum(tl.exp(x - base), axis=0)
        highest = higher
    log_sum = highest + tl.log(total)

    # A row without a label reads the logit of class 0, and counts in neither result.
    target = tl.load(logits_ptr + tl.maximum(label, 0)).to(tl.float32)
    tl.store(log_sums_ptr + row, log_sum)
    tl.store(losses_ptr + row, tl.where(label >= 0, log_sum - target, 0.0))
    tl.store(correct_ptr + row, ((label >= 0) & (target >= highest)).to(tl.int64))


@triton.jit
def cross_entropy_backward(
    logits_ptr,  # unnormalised scores, (rows, classes)
    labels_ptr,  # class of each row, int64, (rows,); negative: the row does not count
    log_sums_ptr,  # logsumexp of each row, float32, (rows,)
    grads_ptr,  # gradient of each row's loss, float32, (rows,)
    dlogits_ptr,  # gradient of the logits, (rows, classes)
    classes,  # columns of a row
    COLUMNS: tl.constexpr,  # classes of a program
):
    """Write COLUMNS numbers of one row's gradient; programs are numbered row by row."""
    blocks = tl.cdiv(classes, COLUMNS)
    row = tl.program_id(0) // blocks
    offset = row.to(tl.int64) * classes
    label = tl.load(labels_ptr + row)
    cols = tl.program_id(0) % blocks * COLUMNS + tl.arange(0, COLUMNS)
    x = tl.load(logits_ptr + offset + cols, mask=cols < classes, other=float("-inf")).to(tl.float32)
    p = tl.exp(x - tl.load(log_sums_ptr + row))
    weight = tl.where(label >= 0, tl.load(grads_ptr + row), 0.0)
    dx = (p - tl.where(cols == label, 1.0, 0.0)) * weight
    tl.store(dlogits_ptr + offset + cols, dx.to(dlogits_ptr.dtype.element_ty), mask=cols < classes)


def cross_entropy_triton(logits_MV: Tensor, labels_M: Tensor) -> tuple[Tensor, Tensor]:
    """Run ``api.row_cross_entropy`` on a CUDA device; everything between loads and stores is float32."""
    require("cross_entropy", logits_MV)
    return _CrossEntropy.apply(logits_MV, labels_M)


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits_MV: Tensor, labels_M: Tensor) -> tuple[Tensor, Tensor]:
        logits_MV, labels_M = logits_MV.contiguous(), labels_M.contiguous()
        rows, classes = logits_MV.shape
        log_sums_M, losses_M = (torch.empty(rows, dtype=torch.float32, device=logits_MV.device) for _ in range(2))
        correct_M = torch.empty(rows, dtype=torch.int64, device=logits_MV.device)
        if rows:
            tiles = cross_entropy_tiles(classes)
            tensors = (logits_MV, labels_M, log_sums_M, losses_M, correct_M)
            cross_entropy_forward[(rows,)](*tensors, classes, COLUMNS=tiles.columns, num_warps=tiles.warps)
        ctx.save_for_backward(logits_MV, labels_M, log_sums_M)
        correct = correct_M.sum()
        ctx.mark_non_differentiable(correct)
        return losses_M, correct

    @staticmethod
    def backward(ctx: Any, grads_M: Tensor, _: Tensor) -> tuple[Tensor, None]:
        logits_MV, labels_M, log_sums_M = ctx.saved_tensors
        rows, classes = logits_MV.shape
        dlogits_MV = torch.empty_like(logits_MV)
        if rows:
            tiles = cross_entropy_tiles(classes)
            # One dimension of programs: the others end at 65,535.
            grid = (triton.cdiv(classes, tiles.columns) * rows,)
            # The gradient of a plain sum is one number, expanded without being stored for each row.
            tensors = (logits_MV, labels_M, log_sums_M, grads_M.contiguous(), dlogits_MV)
            cross_entropy_backward[grid](*tensors, classes, COLUMNS=tiles.columns, num_warps=tiles.warps)
        return dlogits_MV, None
