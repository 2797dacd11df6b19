"""From the recipe's optimizer section to an optimizer over two groups: with and without weight decay."""

from collections.abc import Iterable
from typing import Any

from torch.nn import Parameter

from megabert.config.run import BackendOrApex, OptimizerConfig
from megabert.optim.adamw import AdamW
from megabert.optim.apex_lamb import ApexLamb
from megabert.optim.lamb import Lamb
from megabert.optim.no_decay import no_decay

Optimizer = Lamb | ApexLamb | AdamW


def build_optimizer(
    named_parameters: Iterable[tuple[str, Parameter]], config: OptimizerConfig, *, lamb_backend: BackendOrApex = "auto"
) -> Optimizer:
    """Return LAMB or AdamW over ``named_parameters``; learning rate 0 until the trainer sets it.

    Args:
        named_parameters: As ``module.named_parameters()`` gives them, a tied weight once.
        config: The recipe's ``optimizer`` section; clipping is the engine's.
        lamb_backend: Backend of ``ops.lamb``.

    Raises:
        KernelError: ``lamb_backend`` is ``apex``, which cannot run here.
        ConfigError: Apex has no such variant of LAMB.
    """
    groups = decay_groups(named_parameters, config.weight_decay)
    if config.name == "adamw":
        return AdamW(groups, betas=config.betas, eps=config.eps, weight_decay=config.weight_decay)
    options: dict[str, Any] = {
        "variant": config.lamb_variant,
        "betas": config.betas,
        "eps": config.eps,
        "weight_decay": config.weight_decay,
    }
    return ApexLamb(groups, **options) if lamb_backend == "apex" else Lamb(groups, **options, backend=lamb_backend)


def decay_groups(named_parameters: Iterable[tuple[str, Parameter]], weight_decay: float) -> list[dict[str, Any]]:
    """Split parameters into those with and those without weight decay; empty groups are left out."""
    named = list(named_parameters)
    groups = [
        {"params": [p for name, p in named if not no_decay(name)], "weight_decay": weight_decay, "no_decay": False},
        {"params": [p for name, p in named if no_decay(name)], "weight_decay": 0.0, "no_decay": True},
    ]
    return [group for group in groups if group["params"]]
