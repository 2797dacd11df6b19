"""How many tokens two sides lose where both together are too long, in array arithmetic.

google-research/bert (``truncate_seq_pair``) takes one token at a time, from the longer side, B on a tie. The number
from each side has a closed form, which all pairings share; compiled loops call it for one pair.
"""

from typing import Any

import numpy as np


def excess_by_side(a: Any, b: Any, limit: Any) -> tuple[Any, Any]:
    """Return how many tokens to take from A and from B so that both fit.

    Args:
        a: Tokens of A: a number, or an array of int64.
        b: Tokens of B, likewise.
        limit: Most tokens of both together.
    """
    excess = np.maximum(a + b - limit, 0)
    # First the longer side alone, until both are as long, or enough is taken.
    from_a = np.minimum(excess, np.maximum(a - b, 0))
    from_b = np.minimum(excess, np.maximum(b - a, 0))
    # Then in turn, B first.
    rest = excess - from_a - from_b
    return from_a + rest // 2, from_b + (rest + 1) // 2
