"""What all optimizers here share: learning rate and bias step, moments that begin at zero, and who is not decayed."""

import re
from typing import Any

import torch
from torch import Tensor

_NO_DECAY = re.compile(r"(^|\.)(bias|LayerNorm|layer_norm|ln)(\.|$)")


class BaseOptimizer(torch.optim.Optimizer):
    """An optimizer with one learning rate for all parameters. The trainer sets it and the bias step before each step.

    Neither is counted here, since a batch that was skipped does not count for the schedule either.
    """

    bias_step = 1
    """The t of Adam's bias correction, ``1 / (1 - beta**t)``, from 1."""

    @property
    def lr(self) -> float:
        """Learning rate of every parameter."""
        return float(self.param_groups[0]["lr"])

    @lr.setter
    def lr(self, value: float) -> None:
        for group in self.param_groups:
            group["lr"] = value


def moments_in(state: dict[str, Any], flat: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``(exp_avg, exp_avg_sq)`` of a tensor's state, and create them as zeros before the first step."""
    for name in ("exp_avg", "exp_avg_sq"):
        if name not in state:
            state[name] = torch.zeros_like(flat, memory_format=torch.contiguous_format)
    return state["exp_avg"], state["exp_avg_sq"]


def no_decay(name: str) -> bool:
    """Tell whether a parameter takes no weight decay: a bias, or one of LayerNorm's, as in google-research/bert."""
    return name.endswith("bias") or _NO_DECAY.search(name) is not None
