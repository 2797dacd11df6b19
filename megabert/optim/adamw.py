"""AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101): torch's, with the interface of `Lamb`."""

from collections.abc import Iterable
from typing import Any

import torch

from megabert.config.run import OptimizerConfig
from megabert.optim.base import BaseOptimizer


class AdamW(BaseOptimizer, torch.optim.AdamW):
    """torch's AdamW. It works element by element, so it is exact on any shard and needs no fragment table."""

    bias_correction_over = "run"
    """``bias_step`` counts the steps of the run: the moments are kept from phase to phase, and so is their age."""

    def __init__(self, params: Iterable[Any], config: OptimizerConfig) -> None:
        constants: dict[str, Any] = {name: getattr(config, name) for name in ("betas", "eps", "weight_decay")}
        super().__init__(params, lr=0.0, **constants, fused=True)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update the parameter groups that ZeRO has put there, with ``bias_step`` as the number of this update."""
        scale = torch.as_tensor(self.gradient_scale, dtype=torch.float64)
        # torch's kernel divides gradients by the one while it reads them, and does nothing where the other is 1.
        self.grad_scale, self.found_inf = scale.reciprocal().float(), (scale == 0).float()
        groups = self.param_groups
        for group in groups:
            for flat in group["params"]:
                self.moments(flat)
                # torch adds one to the step; full() fills it on the device, without waiting for it.
                self.state[flat]["step"] = torch.full((), self.bias_step - 1.0, device=flat.device)
        try:
            for group in groups:  # one by one: the weights of a group are sent while the next one is updated
                self.param_groups = [group]
                super().step()
                for flat in group["params"]:
                    self.updated(flat)
        finally:
            self.param_groups = groups
