"""Dropout of hidden states, embeddings and local attention, 10^8 draws each, against independent drops of one rate.

Attention probabilities have their own test (`tests/unit/ops/attention/test_attention_dropout.py`). It serves global
attention with and without rotary positions: the mask is the same.
"""

import itertools
import math
from statistics import NormalDist

import pytest
import torch

from megabert.ops.dropout import (
    ATTENTION_OUTPUT,
    EMBEDDINGS,
    FEED_FORWARD_OUTPUT,
    DropoutStream,
    attention_dropout,
    keep_mask,
    probability_elements,
)

FALSE_ALARM = 1e-6
"""Probability that a test fails by chance, for masks that are random: shared out among its statistics."""
LENGTH, WIDTH, INSTANCES = 512, 1024, 200
NEIGHBOURS = [(0, 1), (1, 0), (1, 1), (1, -1), (0, 2), (2, 0), (0, 8), (8, 0), (0, 16), (16, 0), (0, 64), (0, 512)]
LONGEST, REACH, HEADS, LONG_INSTANCES = 8192, 64, 10, 10

pytestmark = pytest.mark.soak


class Scores:
    """Sums of centred products, which are uncorrelated where drops are independent, and their z-scores."""

    def __init__(self):
        self.sums, self.numbers = {}, {}

    def add(self, name, products):
        self.sums[name] = self.sums.get(name, 0.0) + products.sum(dtype=torch.float64).item()
        self.numbers[name] = self.numbers.get(name, 0) + products.numel()

    def add_instance(self, drop, p, before, *, rows, columns, another):
        """Add the rate, the sums of rows and columns, and products with what was drawn before, under these names."""
        self.add("rate", drop)
        self.add_sums(rows, drop, 1, p)
        self.add_sums(columns, drop, 0, p)
        if before is not None:
            self.add(f"next {another}", drop * before)

    def add_neighbours(self, drop, pairs):
        """Add products of neighbours in rows and columns, the last two dimensions."""
        rows, columns = drop.shape[-2:]
        for down, right in pairs:
            left, moved = (0, right) if right >= 0 else (-right, 0)
            first = drop[..., : rows - down, left : columns - moved]
            self.add(f"neighbours {down, right}", first * drop[..., down:, moved : columns - left])

    def add_sums(self, name, drop, dim, p):
        length = drop.shape[dim]
        squares = drop.sum(dim).square() / length  # chi-square of one degree each, of variance 2 + (kurtosis) / n
        self.add(f"chi-square of {name}", (squares - 1) / math.sqrt(2 + (1 / (p * (1 - p)) - 6) / length))

    def check(self):
        scores = {name: total / math.sqrt(self.numbers[name]) for name, total in self.sums.items()}
        bound = NormalDist().inv_cdf(1 - FALSE_ALARM / (2 * len(scores)))
        print(f"{self.numbers['rate']:,} draws, bound {bound:.2f}, largest {max(map(abs, scores.values())):.2f}")
        for name, score in scores.items():
            print(f"  {name:<24} {score:6.2f}")
        assert {name: score for name, score in scores.items() if abs(score) > bound} == {}


def stream_of(seed, length):
    bounds = torch.tensor([0, length], dtype=torch.int32)
    return DropoutStream.from_batch(torch.tensor([seed], dtype=torch.int32), bounds, torch.arange(length))


def centred(keep, p):
    return ((~keep).float() - p) / math.sqrt(p * (1 - p))


def drops(stream, layer, site, probability):
    keyed = stream.site(layer, site, probability)
    return centred(keep_mask(keyed, keyed.row_keys, WIDTH), keyed.level / 2**16), keyed.level / 2**16


@pytest.mark.parametrize("probability", [0.1, 0.5])
@pytest.mark.parametrize(
    ("layer", "site", "other"),
    [
        (-1, EMBEDDINGS, (0, ATTENTION_OUTPUT)),
        (11, ATTENTION_OUTPUT, (11, FEED_FORWARD_OUTPUT)),
        (11, FEED_FORWARD_OUTPUT, (12, FEED_FORWARD_OUTPUT)),
    ],
    ids=["embeddings", "attention output", "feed-forward output"],
)
def test_hidden_states(layer, site, other, probability):
    scores, before = Scores(), None
    for seed in range(INSTANCES):
        stream = stream_of(seed, LENGTH)
        drop, p = drops(stream, layer, site, probability)
        scores.add_instance(drop, p, before, rows="tokens", columns="columns", another="instance")
        scores.add_neighbours(drop, NEIGHBOURS)
        scores.add("another site or layer", drop * drops(stream, *other, probability)[0])
        before = drop
    scores.check()


@pytest.mark.parametrize("probability", [0.1, 0.5])
def test_local_attention(probability):
    """Each query of 8,192 tokens with the 129 keys of its window, aligned by distance."""
    scores = Scores()
    position_S = torch.arange(LONGEST, dtype=torch.int32)
    query_S1 = position_S[REACH:-REACH, None]
    key_SX = query_S1 + torch.arange(-REACH, REACH + 1, dtype=torch.int32)
    parts = [(query_S1 >> 3 & 1 == q) & (key_SX >> 3 & 1 == k) for q, k in itertools.product(range(2), repeat=2)]
    for seed in range(LONG_INSTANCES):
        site = attention_dropout(stream_of(seed, 1), layer=5, probability=probability, num_heads=HEADS)
        p, before = site.level / 2**16, None
        for key in site.keys_BN()[0]:
            drop = centred(probability_elements(site, key[None, None], query_S1, key_SX), p)
            scores.add_instance(drop, p, before, rows="queries", columns="distances", another="head")
            for number, part in enumerate(parts):
                scores.add(f"rate of position {number}", drop[part])
            # Columns are distances: (8, 0) is the element 8 queries and 8 keys on, (8, -8) of the same key.
            scores.add_neighbours(drop, [*NEIGHBOURS[:-2], (8, -8), (8, 8), (16, -16)])
            before = drop
    scores.check()
