"""Dropout of attention probabilities: its definition, its packing, and how even and independent its decisions are."""

import itertools
import math

import numpy as np
import pytest
import torch
from support.centred_products import Scores, centred

from megabert.foundation.randomness.lowbias32 import lowbias32
from megabert.ops.dropout import (
    FACTORS,
    GOLDEN,
    KEY_STEP,
    MULTIPLIERS,
    DropoutStream,
    attention_dropout,
    probability_bits,
    probability_mask,
)

LENGTH, LONGEST = 512, 8192
NEIGHBOURS = [(0, 1), (1, 0), (1, 1), (1, -1), (0, 2), (2, 0), (0, 8), (8, 0), (8, 8), (0, 16), (16, 0), (16, 16)]


def dropout_of(seeds, *, probability=0.1, layer=0, heads=1):
    stream = DropoutStream(torch.empty(0, dtype=torch.int32), torch.tensor(seeds, dtype=torch.int32))
    return attention_dropout(stream, layer=layer, probability=probability, num_heads=heads)


def test_mask_equals_the_definition_in_plain_integers():
    dropout, length = dropout_of([-5, 123_456_789], heads=2), 37
    keys = dropout.keys_BN().flatten()
    expected = np.empty((4, length, length), dtype=bool)
    for head, key in enumerate(keys.tolist()):
        for q, k in itertools.product(range(length), repeat=2):
            x = key + (q // 16 * 8 + q % 8) * GOLDEN + (k // 16 * 8 + k % 8) * KEY_STEP
            x = (x ^ (x & 0xFFFFFFFF) >> 16) * MULTIPLIERS[0] + lowbias32(key + GOLDEN) & 0xFFFFFFFF
            word = (x ^ x >> 15) * FACTORS[2 * (q // 8 % 2) + k // 8 % 2] & 0xFFFFFFFF
            expected[head, q, k] = (word ^ 2**31) >= round(0.1 * 2**16) * 2**16  # signed, as unsigned numbers
    assert torch.equal(probability_mask(dropout, keys, length), torch.from_numpy(expected))
    assert torch.equal(probability_bits(dropout, keys, length), -torch.from_numpy(expected).int())


def test_words_of_a_head_are_distinct_up_to_the_longest_sequence():
    # q' * GOLDEN + k' * KEY_STEP repeats only over a vector of this lattice. Gauss: take the shorter vector from the
    # longer as often as it goes, until it goes no more; it is the shortest then.
    short, long = (2**32, 0), (-KEY_STEP * pow(GOLDEN, -1, 2**32) % 2**32, 1)
    times = 1
    while times:
        short, long = sorted((short, long), key=lambda vector: math.hypot(*vector))
        times = round((short[0] * long[0] + short[1] * long[1]) / (short[0] ** 2 + short[1] ** 2))
        long = (long[0] - times * short[0], long[1] - times * short[1])
    assert math.hypot(*short) > math.hypot(LONGEST // 2, LONGEST // 2)


def test_factors_are_odd_and_give_each_decision_its_probability():
    assert all(factor % 2 for factor in FACTORS)  # odd: a bijection, each of 2**32 words once
    assert len(set(FACTORS)) == 4


def scores_of(dropout, keys):
    """Return the z-scores of masks."""
    p, scores = dropout.level / 2**16, Scores()
    for some in keys.split(8):
        drop = centred(probability_mask(dropout, some, LENGTH), p)
        group = drop.view(-1, LENGTH // 16, 2, 8, LENGTH // 16, 2, 8)
        four = [group[:, :, q, :, :, k, :] for q, k in itertools.product(range(2), repeat=2)]
        for size in (1, 2, 3, 4):
            for chosen in itertools.combinations(range(4), size):
                scores.add(f"positions {chosen}", math.prod((four[i] for i in chosen[1:]), start=four[chosen[0]]))
        scores.add_neighbours(drop, NEIGHBOURS)
        scores.add("next head", drop[1:] * drop[:-1])
        scores.add("transposed", (drop * drop.mT)[:, *torch.triu_indices(LENGTH, LENGTH, 1)])
        scores.add_sums("rows", drop, 2, p)
        scores.add_sums("columns", drop, 1, p)
    return scores


def test_decisions_are_even_and_independent():
    dropout = dropout_of(range(4), heads=2)
    scores_of(dropout, dropout.keys_BN().flatten()).check()  # 2 million draws


@pytest.mark.soak
@pytest.mark.parametrize("probability", [0.1, 0.5])
def test_decisions_are_even_and_independent_in_many_draws(probability):
    dropout = dropout_of(range(25), probability=probability, heads=16)
    scores_of(dropout, dropout.keys_BN().flatten()).check()  # 105 million draws


def test_statistics_see_a_dependence():
    dropout = dropout_of([1, 1], heads=1)
    scores = scores_of(dropout, dropout.keys_BN()[:, 0]).scores()
    assert scores["next head"] > 100
    assert abs(scores["positions (0,)"]) < 6


def test_layers_and_heads_have_keys_of_their_own():
    keys = torch.cat([dropout_of(range(50), layer=layer, heads=16).keys_BN().flatten() for layer in range(24)])
    assert keys.unique().numel() == 50 * 16 * 24


def test_probability_below_its_resolution_drops_nothing():
    assert dropout_of([1], probability=2**-18) is None
    assert attention_dropout(None, layer=0, probability=0.1, num_heads=2) is None
