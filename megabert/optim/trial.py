"""A trial of an optimizer: float32 under ZeRO, with an interruption, against the same rule in float64 on one rank.

One rank stands for all: a parameter consists of equal parts, one for each rank, and so does its gradient, so
that every rank holds the same numbers and a sum over the ranks is a multiple. A flat has parts of several parameters.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from megabert.foundation.errors import MegabertError
from megabert.optim.base import BaseOptimizer, Fragment, StepSettings, UpdateSink
from megabert.optim.build import build_optimizer
from megabert.settings.config.run import OptimizerConfig

SHAPES = {"embeddings.weight": (37, 8), "dense.weight": (8, 13), "dense.bias": (13,), "LayerNorm.weight": (13,)}
"""Shapes of a rank's parts."""
RANKS, STEPS, INTERRUPTED = 3, 12, 6


def check_optimizer(name: str, *, tolerance: float = 1e-6, **settings: Any) -> float:
    """Try an optimizer of a package, or one of ours but for Muon; return its error, relative to the weights' norm.

    Args:
        name: Its name in a recipe.
        tolerance: Largest error that is allowed.
        settings: Fields of the section ``optimizer``, such as ``options={"momentum": 0.9}``.

    Raises:
        MegabertError: The error is larger: a run would depend on its ranks, or on when it is resumed.
        ConfigError: There is no such optimizer, or an option is wrong.
    """
    config = OptimizerConfig(name=name, **settings)
    exact, own = _train(config, torch.float64, 1), _train(config, torch.float32, RANKS)
    error = float((own - exact).norm() / exact.norm())
    if not error <= tolerance:  # or it is NaN
        raise MegabertError(
            f"optimizer {name}: {RANKS} ranks under ZeRO are off by {error:.1e} from float64 on one rank. Sum over a "
            "parameter's fragments in float64 and over ranks (sum_over_ranks), update the groups in param_groups "
            "alone, call sink.updated, change nothing at gradient_scale 0, keep all state under state_names."
        )
    return error


class _Alike(UpdateSink):
    """Ranks that all hold the same numbers, and the sink of one."""

    rank, size, device = 0, RANKS, torch.device("cpu")

    def __init__(self) -> None:
        self.weights: dict[int, Tensor] = {}

    def sum_over_ranks(self, values: Tensor) -> Tensor:
        return values.mul_(self.size)

    def updated(self, flat: Tensor, *, is_rounded: bool = False) -> None:
        self.weights[id(flat)] = flat.detach().clone()


def _train(config: OptimizerConfig, dtype: torch.dtype, size: int) -> Tensor:
    """Return the first part of each parameter after some steps; under ZeRO with an overflow and a resume."""
    ranks = _Alike()
    optimizer = _begin(config, dtype, size, ranks)
    for step in range(1, STEPS + 1):
        if step == INTERRUPTED and size > 1:
            _step(optimizer, step, scale=0.0)
            before, optimizer = optimizer, _begin(config, dtype, size, ranks)
            for old, new in zip(before.fragments, optimizer.fragments, strict=True):
                new.view().copy_(old.view())
                for moment, was in zip(optimizer.moments(new.flat), before.moments(old.flat), strict=True):
                    moment.copy_(was)
        _step(optimizer, step, scale=0.5)
    ends = [f.view(ranks.weights.get(id(f.flat), f.flat * torch.nan)) for f in optimizer.fragments]
    return torch.cat([end[: len(end) * size // RANKS] for end in ends]).double()


def _begin(config: OptimizerConfig, dtype: torch.dtype, size: int, ranks: _Alike) -> BaseOptimizer:
    """Return the optimizer before the first step: over whole parameters, or over a flat for each group."""
    draw = torch.Generator().manual_seed(0)
    parts = {name: torch.randn(shape, generator=draw).to(dtype) for name, shape in SHAPES.items()}
    named = {name: Parameter(torch.cat([part] * (RANKS // size))) for name, part in parts.items()}
    optimizer, names, fragments = build_optimizer(named.items(), config), {id(p): name for name, p in named.items()}, []
    for group in optimizer.param_groups:
        flat, offset, own = Parameter(torch.cat([p.detach().view(-1) for p in group["params"]])), 0, group["params"]
        for p in own:
            fragments.append(Fragment(flat if size > 1 else p, offset * (size > 1), names[id(p)], 0, p.numel()))
            offset += p.numel()
        group["params"] = [flat] if size > 1 else own
    shapes = {name: torch.Size((shape[0] * RANKS, *shape[1:])) for name, shape in SHAPES.items()}
    optimizer.attach(fragments, shapes, ranks if size > 1 else None, ranks)  # type: ignore[arg-type]
    return optimizer


def _step(optimizer: BaseOptimizer, step: int, *, scale: float) -> None:
    """Make a step, group by group as stage 3 does; at scale 0 the gradients are NaN."""
    draw, groups = torch.Generator().manual_seed(step), optimizer.param_groups
    for flat in {id(f.flat): f.flat for f in optimizer.fragments}.values():
        flat.grad = torch.zeros_like(flat)
    for f in optimizer.fragments:
        part = torch.randn(SHAPES[f.parameter], generator=draw).view(-1)
        f.view(f.flat.grad).copy_(part.repeat(f.numel // part.numel()) * (1.0 if scale else torch.nan))
    settings = StepSettings(lr=0.01, bias_step=step, gradient_scale=torch.tensor(scale, dtype=torch.float64))
    for group in groups:
        optimizer.param_groups = [group]
        optimizer.step(settings)
    optimizer.param_groups = groups
