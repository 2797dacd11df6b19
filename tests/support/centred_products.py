"""Z-scores of random masks, which tests of dropout hold against independent drops of one rate."""

import math
from statistics import NormalDist

import torch
from torch import Tensor

FALSE_ALARM = 1e-6
"""Probability that a test fails by chance, for masks that are random: shared out among its statistics."""


class Scores:
    """Sums of centred products, which are uncorrelated where drops are independent, and their z-scores."""

    def __init__(self) -> None:
        self.sums: dict[str, float] = {}
        self.numbers: dict[str, int] = {}

    def add(self, name: str, products: Tensor) -> None:
        """Add products of different elements, each with the variance of the product."""
        self.sums[name] = self.sums.get(name, 0.0) + products.sum(dtype=torch.float64).item()
        self.numbers[name] = self.numbers.get(name, 0) + products.numel()

    def add_neighbours(self, drop: Tensor, pairs: list[tuple[int, int]]) -> None:
        """Add products of neighbours in rows and columns, the last two dimensions."""
        rows, columns = drop.shape[-2:]
        for down, right in pairs:
            left, moved = (0, right) if right >= 0 else (-right, 0)
            first = drop[..., : rows - down, left : columns - moved]
            self.add(f"neighbours {down, right}", first * drop[..., down:, moved : columns - left])

    def add_sums(self, name: str, drop: Tensor, dim: int, p: float) -> None:
        """Add the squared sums of a dimension."""
        length = drop.shape[dim]
        squares = drop.sum(dim).square() / length  # chi-square of one degree each, of variance 2 + (kurtosis) / n
        self.add(f"chi-square of {name}", (squares - 1) / math.sqrt(2 + (1 / (p * (1 - p)) - 6) / length))

    def scores(self) -> dict[str, float]:
        """Return the z-scores: standard normal where the drops are independent."""
        return {name: total / math.sqrt(self.numbers[name]) for name, total in self.sums.items()}

    def check(self) -> None:
        """Print the scores, and fail if one is too far out."""
        scores = self.scores()
        bound = NormalDist().inv_cdf(1 - FALSE_ALARM / (2 * len(scores)))
        print(f"bound {bound:.2f}", *(f"  {name:<24} {score:6.2f}" for name, score in scores.items()), sep="\n")
        assert {name: score for name, score in scores.items() if abs(score) > bound} == {}


def centred(keep: Tensor, p: float) -> Tensor:
    """Return drops with the rate p as numbers of mean 0 and variance 1."""
    return ((~keep).float() - p) / math.sqrt(p * (1 - p))
