"""LAMB by NVIDIA Apex (FusedLAMB) with the interface of `Lamb`, for unsharded parameters on a GPU.

It has not been tested with a real Apex, only with a stand-in that has the documented arguments.
"""

import math
from collections.abc import Iterable
from typing import Any

import torch

from megabert.foundation.errors import ConfigError
from megabert.ops.backend import APEX_LAMB, apex_obstacle, refuse_apex_lamb
from megabert.optim.base import BaseOptimizer, StepSettings
from megabert.settings.config.run import OptimizerConfig

VARIANTS = {
    "apex": {"bias_correction": True, "use_nvlamb": False},
    "nvlamb": {"bias_correction": True, "use_nvlamb": True},
    "paper": {"bias_correction": False, "use_nvlamb": False},
}
"""FusedLAMB's settings for our variants. It cannot limit the trust ratio, which the variant ``deepspeed`` requires."""


class ApexLamb(BaseOptimizer):
    """FusedLAMB, which is built in ``attach``: only then are the parameters on their device."""

    def __init__(self, params: Iterable[Any], config: OptimizerConfig, backend: str = "apex") -> None:
        """Check the settings; the parameters are checked when the engine attaches them.

        Raises:
            KernelError: Apex cannot be imported, or was built without its kernels.
            ConfigError: Apex does not have this variant.
        """
        refuse_apex_lamb(apex_obstacle("cuda", extension=APEX_LAMB))
        variant, weight_decay = config.lamb_variant, config.weight_decay
        if variant not in VARIANTS or (variant == "paper" and not weight_decay):
            raise ConfigError(
                f"ops.lamb=apex cannot do optimizer.lamb_variant={variant} with optimizer.weight_decay={weight_decay}: "
                "FusedLAMB does apex, nvlamb, and paper with weight decay. "
                "Choose one of these, or ops.lamb=auto."
            )
        super().__init__(params, {"lr": 0.0, "betas": config.betas, "eps": config.eps, "weight_decay": weight_decay})
        self._variant = variant
        self._fused: torch.optim.Optimizer | None = None

    def _prepare(self) -> None:
        """Build FusedLAMB over whole parameters, by its signature of July 2026.

        Raises:
            KernelError: The parameters are sharded, or not on a GPU.
        """
        if self.ranks is not None:
            refuse_apex_lamb("FusedLAMB takes norms of whole tensors, and ZeRO shards them; it serves --engine zero0")
        refuse_apex_lamb(apex_obstacle(self.param_groups[0]["params"][0].device.type, extension=APEX_LAMB))
        from apex.optimizers import FusedLAMB

        self._fused = FusedLAMB(
            self.param_groups,
            adam_w_mode=True,
            grad_averaging=True,
            max_grad_norm=math.inf,  # the engine has clipped; 0 would not mean "do not clip" there
            **VARIANTS[self._variant],
        )
        # The groups and the state are ours: the learning rate and the moments of a checkpoint reach FusedLAMB as well.
        self._fused.param_groups, self._fused.state = self.param_groups, self.state

    @torch.no_grad()
    def step(self, settings: StepSettings) -> None:  # type: ignore[override]
        """Update every parameter; gradients are overwritten."""
        assert self._fused is not None, "attach first"
        scale = float(settings.gradient_scale)  # which waits for the GPU
        if scale == 0.0:
            return
        if scale != 1.0:
            gradients = [flat.grad for group in self.param_groups for flat in group["params"] if flat.grad is not None]
            torch._foreach_mul_(gradients, scale)
        for group in self.param_groups:
            group["lr"], group["step"] = settings.lr, settings.bias_step - 1  # Apex adds one
        self._fused.step()
