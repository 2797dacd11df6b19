"""LAMB's two passes in plain torch: the meaning of the op (You et al. 2020, algorithm 2), and its CPU backend.

Elements are computed in the dtype of the flat tensors, float32 or float64. Squares are always summed in float64.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from megabert.ops.lamb.api import Coefficients, Passes, SlotFragment
from megabert.ops.sums_of_squares import sums_of_squares


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
    """Run pass 1: update the moments, write the update over ``gradient``, add each fragment's sums to ``squares``."""
    c, scale = coefficients, float(coefficients.gradient_scale)  # which waits for a GPU; the kernels do not
    if scale == 0.0:
        return
    if scale != 1.0:
        gradient.mul_(scale)
    exp_avg.lerp_(gradient, 1.0 - c.beta1)
    exp_avg_sq.mul_(c.beta2).addcmul_(gradient, gradient, value=1.0 - c.beta2)
    measured = weights
    if c.measures_gradient:
        measured = gradient / (exp_avg_sq * c.exp_avg_sq_scale).sqrt_().clamp_(min=c.eps)
    # u = (m * m_scale) / (sqrt(v * v_scale) + eps) + decay * w, with m_scale moved into the denominator: one pass less.
    torch.sqrt(exp_avg_sq, out=gradient)
    gradient.mul_(c.exp_avg_sq_scale**0.5 / c.exp_avg_scale).add_(c.eps / c.exp_avg_scale)
    torch.div(exp_avg, gradient, out=gradient)
    if c.weight_decay:
        gradient.add_(weights, alpha=c.weight_decay)
    slots = torch.tensor([fragment.slot for fragment in fragments], dtype=torch.int64, device=squares.device)
    for row, values in enumerate((measured, gradient)):
        slices = [values[fragment.offset : fragment.offset + fragment.numel] for fragment in fragments]
        squares[row].index_add_(0, slots, sums_of_squares(slices, squares.device))


def apply_update(
    weights: Tensor, update: Tensor, *, fragments: Sequence[SlotFragment], scales: Tensor, rounded: Tensor | None = None
) -> None:
    """Run pass 2: ``weights += scales[slot] * update`` on every fragment; elements between fragments are padding."""
    factors = scales.tolist()  # which waits for a GPU; the kernels do not
    for fragment in fragments:
        span = slice(fragment.offset, fragment.offset + fragment.numel)
        if factors[fragment.slot]:
            weights[span].add_(update[span], alpha=factors[fragment.slot])
        if rounded is not None:
            rounded[span].copy_(weights[span])


TORCH_PASSES = Passes(compute_update, apply_update)
