"""AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101): torch's, with the interface of `Lamb`."""

import inspect
from collections.abc import Iterable
from typing import Any

import torch

from megabert.optim.base import BaseOptimizer, StepSettings
from megabert.settings.config.run import OptimizerConfig

_STEP = inspect.unwrap(torch.optim.AdamW.step)
"""torch's update without its decorator, which imports the compiler and switches gradients off, as `AdamW.step` does."""


class AdamW(BaseOptimizer, torch.optim.AdamW):
    """torch's AdamW. It works element by element, so it is exact on any shard and needs no fragment table."""

    bias_correction_over = "run"  # the moments are kept from phase to phase, and so is their age

    def __init__(self, params: Iterable[Any], config: OptimizerConfig, backend: str = "auto") -> None:
        """Bind the constants. ``backend`` chooses among the implementations of LAMB and has no effect here."""
        constants: dict[str, Any] = {name: getattr(config, name) for name in ("betas", "eps", "weight_decay")}
        super().__init__(params, lr=0.0, **constants, fused=True)  # only fused reads grad_scale and found_inf

    def step(self, settings: StepSettings) -> None:  # type: ignore[override]
        """Update the parameter groups that are there."""
        self._step_groups(self.param_groups, settings)

    @torch.no_grad()
    def _step_groups(self, groups: list[dict[str, Any]], settings: StepSettings) -> None:
        scale = torch.as_tensor(settings.gradient_scale, dtype=torch.float64)
        # torch's kernel divides gradients by grad_scale while it reads them, and does nothing if found_inf is 1.
        self.grad_scale, self.found_inf = scale.reciprocal().float(), (scale == 0).float()
        for group in groups:
            group["lr"] = settings.lr
            for flat in group["params"]:
                self.moments(flat)  # made before the first step; torch reads them from the state
                # torch adds one to the step; full() fills it on the device, without waiting for it.
                self.state[flat]["step"] = torch.full((), settings.bias_step - 1.0, device=flat.device)
        kept = self.param_groups
        try:
            for group in groups:  # one by one: the weights of a group are sent while the next one is updated
                self.param_groups = [group]
                _STEP(self)
                for flat in group["params"]:
                    self.sink.updated(flat)
        finally:
            self.param_groups = kept
