"""Build the optimizer of a recipe, over two parameter groups: with and without weight decay."""

from collections.abc import Callable, Iterable

from torch.nn import Parameter

from megabert.config.run import BackendOrApex, OptimizerConfig
from megabert.optim.adamw import AdamW
from megabert.optim.apex_lamb import ApexLamb
from megabert.optim.base import BaseOptimizer, no_decay
from megabert.optim.lamb import Lamb
from megabert.optim.stable_adamw import StableAdamW

OPTIMIZERS: dict[str, Callable[..., BaseOptimizer]] = {"lamb": Lamb, "adamw": AdamW, "stable_adamw": StableAdamW}


def build_optimizer(
    named_parameters: Iterable[tuple[str, Parameter]], config: OptimizerConfig, *, lamb_backend: BackendOrApex = "auto"
) -> BaseOptimizer:
    """Return the optimizer of a recipe over ``named_parameters``. Its learning rate is 0 until the trainer sets it.

    Args:
        named_parameters: The result of ``module.named_parameters()``, which lists a tied weight once.
        config: The recipe's ``optimizer`` section. Its ``max_grad_norm`` is the engine's business.
        lamb_backend: The ``ops.lamb`` of the recipe.

    Raises:
        KernelError: ``lamb_backend`` is ``apex``, and Apex cannot run here.
        ConfigError: Apex does not have this variant of LAMB.
    """
    named = list(named_parameters)
    # ZeRO makes one flat of each group, so a flat has one weight decay. A group without parameters is left out.
    split = (
        {"params": [p for name, p in named if not no_decay(name)], "weight_decay": config.weight_decay},
        {"params": [p for name, p in named if no_decay(name)], "weight_decay": 0.0},
    )
    groups = [group for group in split if group["params"]]
    is_apex = config.name == "lamb" and lamb_backend == "apex"
    return (ApexLamb if is_apex else OPTIMIZERS[config.name])(groups, config, lamb_backend)
