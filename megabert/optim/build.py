"""Build the optimizer of a recipe, over two parameter groups: with and without weight decay."""

from collections.abc import Iterable
from typing import Any

from torch.nn import Parameter

from megabert.config.run import BackendOrApex, OptimizerConfig
from megabert.optim.adamw import AdamW
from megabert.optim.apex_lamb import ApexLamb
from megabert.optim.base import no_decay
from megabert.optim.lamb import Lamb

Optimizer = Lamb | ApexLamb | AdamW


def build_optimizer(
    named_parameters: Iterable[tuple[str, Parameter]], config: OptimizerConfig, *, lamb_backend: BackendOrApex = "auto"
) -> Optimizer:
    """Return LAMB or AdamW over ``named_parameters``. Its learning rate is 0 until the trainer sets it.

    Args:
        named_parameters: The result of ``module.named_parameters()``, which lists a tied weight once.
        config: The recipe's ``optimizer`` section. Its ``max_grad_norm`` is the engine's business.
        lamb_backend: The ``ops.lamb`` of the recipe.

    Raises:
        KernelError: ``lamb_backend`` is ``apex``, and Apex cannot run here.
        ConfigError: Apex does not have this variant of LAMB.
    """
    # ZeRO makes one flat of each group, so a flat has one weight decay.
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
    """Split parameters into a group with weight decay and one without; an empty group is left out."""
    named = list(named_parameters)
    groups = [
        {"params": [p for name, p in named if not no_decay(name)], "weight_decay": weight_decay, "no_decay": False},
        {"params": [p for name, p in named if no_decay(name)], "weight_decay": 0.0, "no_decay": True},
    ]
    return [group for group in groups if group["params"]]
