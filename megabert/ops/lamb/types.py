"""What LAMB's passes are told: pieces of parameters, and the numbers of one step."""

from dataclasses import dataclass
from typing import NamedTuple


class Segment(NamedTuple):
    """A piece of one parameter within a flat tensor."""

    offset: int
    numel: int
    slot: int
    """The parameter's column in the vector of squared norms."""


@dataclass(frozen=True, kw_only=True)
class Coefficients:
    """One step's numbers; ``u = (exp_avg_scale * m) / (sqrt(exp_avg_sq_scale * v) + eps) + weight_decay * w``."""

    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    exp_avg_scale: float = 1.0
    """1 / (1 - beta1**t) where the variant corrects for the moments' start at zero."""
    exp_avg_sq_scale: float = 1.0
    """1 / (1 - beta2**t) likewise."""
