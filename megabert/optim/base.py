"""What all optimizers here share: what the trainer sets before a step, and moments that begin at zero."""

from typing import Any

import torch
from torch import Tensor


class BaseOptimizer(torch.optim.Optimizer):
    """An optimizer with one learning rate for every parameter."""

    bias_step = 1
    """t of the bias correction, from 1; the trainer sets it before each step."""

    @property
    def lr(self) -> float:
        """Learning rate of every parameter; the trainer sets it before each step."""
        return float(self.param_groups[0]["lr"])

    @lr.setter
    def lr(self, value: float) -> None:
        for group in self.param_groups:
            group["lr"] = value


def moments_in(state: dict[str, Any], flat: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``(exp_avg, exp_avg_sq)`` of a tensor's state, zeros if it was never stepped."""
    for name in ("exp_avg", "exp_avg_sq"):
        if name not in state:
            state[name] = torch.zeros_like(flat, memory_format=torch.contiguous_format)
    return state["exp_avg"], state["exp_avg_sq"]
