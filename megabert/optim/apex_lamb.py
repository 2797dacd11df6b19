"""LAMB by NVIDIA Apex (FusedLAMB) with the interface of `Lamb`, for unsharded parameters on a GPU.

It has not been tested with a real Apex, only with a stand-in that has the documented arguments.
"""

import importlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from megabert.errors import ConfigError, KernelError
from megabert.ops.backend import APEX_LAMB, apex_obstacle
from megabert.optim.base import BaseOptimizer, moments_in
from megabert.optim.fragment import Fragment

VARIANTS = {
    "nvlamb": {"is_corrected": True, "adapts_all": True},
    "paper": {"is_corrected": False, "adapts_all": False},
}
"""FusedLAMB's settings for our variants. It cannot limit the trust ratio, which the variant ``deepspeed`` requires."""


class ApexLamb(BaseOptimizer):
    """FusedLAMB, which is built in ``attach``: only then are the parameters on their device."""

    bias_correction_over = "phase"
    """``bias_step`` counts the steps of a phase, as in NVIDIA's recipe."""

    def __init__(
        self,
        params: Iterable[Any],
        *,
        variant: str = "nvlamb",
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
    ) -> None:
        """Check the settings; the parameters are checked when the engine attaches them.

        Raises:
            KernelError: Apex cannot be imported, or was built without its kernels.
            ConfigError: Apex does not have this variant.
        """
        _refuse(apex_obstacle("cuda", extension=APEX_LAMB))
        if variant not in VARIANTS or (variant == "paper" and not weight_decay):
            raise ConfigError(
                f"ops.lamb=apex cannot do optimizer.lamb_variant={variant} with optimizer.weight_decay={weight_decay}: "
                "FusedLAMB does nvlamb, or paper where there is weight decay. Choose one of these, or ops.lamb=auto."
            )
        super().__init__(params, {"lr": 0.0, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self.variant = variant
        self._fused: torch.optim.Optimizer | None = None

    def attach(
        self, fragments: Sequence[Fragment], names: Sequence[str], all_reduce: Callable[[Tensor], None] | None
    ) -> None:
        """Build FusedLAMB over whole parameters.

        Raises:
            KernelError: The parameters are sharded, or not on a GPU.
        """
        if all_reduce is not None:
            _refuse("FusedLAMB takes norms of whole tensors, and ZeRO shards them; it serves --engine zero0")
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        _refuse(apex_obstacle(parameters[0].device.type, extension=APEX_LAMB))
        self._fused = importlib.import_module("megabert.ops.lamb.apex").fused_lamb(
            [{"params": group["params"], "weight_decay": group["weight_decay"]} for group in self.param_groups],
            betas=self.defaults["betas"],
            eps=self.defaults["eps"],
            **VARIANTS[self.variant],
        )

    @property
    def trust_ratios(self) -> dict[str, float]:
        """Empty: FusedLAMB does not return them."""
        return {}

    def moments(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``(exp_avg, exp_avg_sq)`` of a parameter; zeros before the first step."""
        assert self._fused is not None, "attach first"
        return moments_in(self._fused.state[flat], flat)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter with ``bias_step`` as the number of this update; gradients are overwritten."""
        assert self._fused is not None, "attach first"
        for group, ours in zip(self._fused.param_groups, self.param_groups, strict=True):
            group["lr"] = ours["lr"]
            group["step"] = self.bias_step - 1  # Apex adds one
        self._fused.step()


def _refuse(obstacle: str | None) -> None:
    if obstacle is not None:
        raise KernelError(f"ops.lamb=apex cannot run: {obstacle}. Choose ops.lamb=auto, triton or torch.")
