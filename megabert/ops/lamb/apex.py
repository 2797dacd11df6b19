"""NVIDIA Apex's FusedLAMB with the options that make it ``megabert.optim.Lamb``. Untested on a real Apex."""

import math

import torch
from apex.optimizers import FusedLAMB


def fused_lamb(
    groups: list[dict[str, object]], *, betas: tuple[float, float], eps: float, is_corrected: bool, adapts_all: bool
) -> torch.optim.Optimizer:
    """Return FusedLAMB over whole CUDA parameters, by its signature of July 2026.

    Args:
        groups: Parameter groups, each with its ``weight_decay``.
        betas: Decay rates of the two moments.
        eps: Added to the root of the second moment.
        is_corrected: Whether moments are corrected for their start at zero.
        adapts_all: Whether parameters without weight decay get a trust ratio as well.
    """
    optimizer: torch.optim.Optimizer = FusedLAMB(
        groups,
        lr=0.0,
        bias_correction=is_corrected,
        betas=betas,
        eps=eps,
        adam_w_mode=True,
        grad_averaging=True,
        max_grad_norm=math.inf,  # the engine has clipped; 0 would not mean "do not clip" there
        use_nvlamb=adapts_all,
    )
    return optimizer
