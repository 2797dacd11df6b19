"""Random offsets of positions, so that short instances train rows of the position table that longer ones will read.

Kiyono et al. 2021 (SHAPE, arXiv:2109.05644) shift all positions of a sequence by a random number. Here [CLS] keeps
position 0, as in a phase without offsets: an instance of n tokens has the positions 0, 1 + k, ..., n - 1 + k.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megabert.foundation.randomness.keyed import below, mix, string_key

_OFFSETS_KEY = string_key("data/position_offsets")


@dataclass(frozen=True)
class PositionOffsets:
    """Offsets as a function of (seed, epoch, row): the same on any rank, in any micro-batch and after a resume."""

    seed: int
    num_positions: int
    """Rows of the position table; no position is as large."""

    def draw(
        self, epochs: NDArray[np.int64], rows: NDArray[np.int64], lengths: NDArray[np.integer]
    ) -> NDArray[np.int64]:
        """Return the offset of each instance, from 0 to the number of positions that it leaves free.

        Args:
            epochs: Epoch in which each instance is read.
            rows: Its global row.
            lengths: Its tokens, at most ``num_positions``.
        """
        return below(mix(_OFFSETS_KEY, self.seed, epochs, rows), self.num_positions - lengths.astype(np.int64) + 1)
