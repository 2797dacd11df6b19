"""AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101): torch's, with the interface of `Lamb`."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from megabert.optim.base import BaseOptimizer, moments_in
from megabert.optim.fragment import Fragment


class AdamW(BaseOptimizer, torch.optim.AdamW):
    """torch's AdamW. It works element by element, so it is exact on any shard and needs no fragment table."""

    bias_correction_over = "run"
    """``bias_step`` counts the steps of the run: the moments are kept from phase to phase, and so is their age."""

    def __init__(
        self,
        params: Iterable[Any],
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(params, lr=0.0, betas=betas, eps=eps, weight_decay=weight_decay, fused=True)

    def attach(
        self, fragments: Sequence[Fragment], names: Sequence[str], all_reduce: Callable[[Tensor], None] | None
    ) -> None:
        """Accept the fragment table, which AdamW does not need."""

    @property
    def trust_ratios(self) -> dict[str, float]:
        """Empty: only LAMB has trust ratios."""
        return {}

    def moments(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``(exp_avg, exp_avg_sq)`` of a flat; zeros before the first step."""
        state = self.state[flat]
        if "step" not in state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=flat.device)
        return moments_in(state, flat)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update the parameter groups that ZeRO has put there, with ``bias_step`` as the number of this update."""
        for group in self.param_groups:
            for flat in group["params"]:
                self.moments(flat)
                self.state[flat]["step"].fill_(self.bias_step - 1)  # torch adds one
        super().step()
