"""Build the optimizer of a recipe, over parameter groups: with and without weight decay, and Muon's matrices."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch.nn import Parameter

from megabert.foundation.errors import ConfigError
from megabert.optim.adamw import AdamW, StableAdamW
from megabert.optim.apex_lamb import ApexLamb
from megabert.optim.base import BaseOptimizer, no_decay
from megabert.optim.lamb import Lamb
from megabert.optim.muon import Muon
from megabert.settings.config.extensions import load_extension
from megabert.settings.config.run import OPTIMIZER_NAMES, BackendOrApex, OptimizerConfig

OPTIMIZERS: dict[str, Callable[..., BaseOptimizer]] = {"lamb": Lamb, "adamw": AdamW, "stable_adamw": StableAdamW}


def build_optimizer(
    named_parameters: Iterable[tuple[str, Parameter]],
    config: OptimizerConfig,
    *,
    lamb_backend: BackendOrApex = "auto",
    matrices: Mapping[str, int] | None = None,
) -> BaseOptimizer:
    """Return the optimizer of a recipe over ``named_parameters``. Its learning rate is 0 until the trainer sets it.

    Args:
        named_parameters: The result of ``module.named_parameters()``, which lists a tied weight once.
        config: The recipe's ``optimizer`` section. Its ``max_grad_norm`` is the engine's business.
        lamb_backend: The ``ops.lamb`` of the recipe.
        matrices: For Muon, the parameters that it orthogonalises, and how many matrices each is along its rows
            (``models.matrices``). It has to be told which they are.

    Raises:
        KernelError: ``lamb_backend`` is ``apex``, and Apex cannot run here.
        ConfigError: Apex does not have this variant of LAMB, or a package's optimizer is wrong or missing.
    """
    named = list(named_parameters)
    orthogonalized: Mapping[str, int] = {}
    if config.name == "muon":
        if matrices is None:
            raise ValueError("build_optimizer: matrices is None with name=muon; pass models.layer_matrices(model).")
        orthogonalized = matrices
    # ZeRO makes one flat of each group, so a flat has one weight decay. A group without parameters is left out.
    matrix_weights = [p for name, p in named if name in orthogonalized]
    undecayed = [p for name, p in named if no_decay(name)]
    decayed = [p for name, p in named if name not in orthogonalized and not no_decay(name)]
    split: tuple[dict[str, Any], ...] = (
        {"params": decayed, "weight_decay": config.weight_decay},
        {"params": undecayed, "weight_decay": 0.0},
        {"params": matrix_weights, "weight_decay": config.weight_decay, "is_matrix": True},
    )
    groups = [group for group in split if group["params"]]
    if extension := load_extension("optimizer", config.name, OPTIMIZER_NAMES, config.options, config.package):
        if isinstance(built := extension[0].build(groups, config), BaseOptimizer):
            return built
        raise ConfigError(f"optimizer {config.name} of {extension[1]}: build gave no BaseOptimizer. Correct it.")
    if config.name == "muon":
        return Muon(groups, config, lamb_backend, matrices=orthogonalized)
    is_apex = config.name == "lamb" and lamb_backend == "apex"
    return (ApexLamb if is_apex else OPTIMIZERS[config.name])(groups, config, lamb_backend)
