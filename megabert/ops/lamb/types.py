"""The types of LAMB's passes: slices of parameters, the numbers of one step, and a backend's two functions."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple


class Segment(NamedTuple):
    """A slice of one parameter within a flat tensor."""

    offset: int
    """First element in the flat tensor."""
    numel: int
    """Number of elements."""
    slot: int
    """The parameter's column in the vector of squared norms."""


@dataclass(frozen=True, kw_only=True)
class Coefficients:
    """The numbers of one step: ``u = (exp_avg_scale * m) / (sqrt(exp_avg_sq_scale * v) + eps) + weight_decay * w``."""

    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    exp_avg_scale: float = 1.0
    """1 / (1 - beta1**t) where the variant corrects for the moments' start at zero."""
    exp_avg_sq_scale: float = 1.0
    """1 / (1 - beta2**t) likewise."""


@dataclass(frozen=True)
class Passes:
    """A backend's implementation of ``api.compute_update`` and ``api.apply_update``."""

    compute_update: Callable[..., None]
    apply_update: Callable[..., None]
