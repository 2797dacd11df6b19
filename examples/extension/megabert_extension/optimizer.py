"""Momentum whose steps have the same length for every parameter, relative to its weights (You et al. 2017, LARS)."""

from typing import Annotated, Any

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass

from megabert.optim.base import BaseOptimizer, OptimizerOptions, StepSettings
from megabert.settings.config.fields import STRICT
from megabert.settings.config.run import OptimizerConfig


@dataclass(frozen=True, config=STRICT)
class Normed(OptimizerOptions):
    """``optimizer.name: normed`` in a recipe; the fields are ``optimizer.options``."""

    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Share of the momentum that a step keeps."""

    def build(self, groups: list[dict[str, Any]], config: OptimizerConfig) -> BaseOptimizer:
        """Return the optimizer over the groups, of which each has its ``weight_decay``."""
        return _Normed(groups, {"momentum": self.momentum})


class _Normed(BaseOptimizer):
    """The update of a parameter w with gradient g, with both norms over the whole parameter.

    m = momentum * m + (1 - momentum) * g
    w = w - learning_rate * (norm(w) + 0.01) * m / norm(m) - learning_rate * weight_decay * w
    """

    state_names = ("exp_avg",)  # a checkpoint stores these tensors, which have the layout of the flats

    @torch.no_grad()
    def step(self, settings: StepSettings) -> None:  # type: ignore[override]
        """Update the groups that are there: at stage 3 one, else all."""
        scale = float(settings.gradient_scale)
        if scale == 0.0:  # a gradient is not finite, on some rank
            return
        flats = {id(flat): (flat, group) for group in self.param_groups for flat in group["params"]}
        for flat, group in flats.values():
            (m,) = self.moments(flat)
            m.lerp_(flat.grad * scale, 1 - group["momentum"])
        # This rank's fragments of each parameter, then those of all ranks.
        fragments = [fragment for fragment in self.fragments if id(fragment.flat) in flats]
        squares = dict.fromkeys(self.shapes, (0.0, 0.0))
        for f in fragments:
            w, m = (float(f.view(values).double().square().sum()) for values in (f.flat, *self.moments(f.flat)))
            squares[f.parameter] = w, m
        sums = torch.tensor(list(squares.values()), dtype=torch.float64)
        if self.ranks is not None:
            self.ranks.sum_over_ranks(sums)
        norms = dict(zip(self.shapes, sums.sqrt().tolist(), strict=True))
        for f in fragments:
            (w_norm, m_norm), (m,) = norms[f.parameter], self.moments(f.flat)
            w, decay = f.view(), flats[id(f.flat)][1]["weight_decay"]
            w.mul_(1 - settings.lr * decay).sub_(f.view(m), alpha=settings.lr * (w_norm + 0.01) / (m_norm or 1.0))
        for flat, _ in flats.values():
            self.sink.updated(flat)  # whose weights may travel to the other ranks from now on
