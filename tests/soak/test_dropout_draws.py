"""Dropout of hidden states, embeddings and local attention, 10^8 draws each, against independent drops of one rate.

Attention probabilities have their own test (`tests/unit/ops/attention/test_attention_dropout.py`). It serves global
attention with and without rotary positions: the mask is the same.
"""

import itertools

import pytest
import torch
from support.centred_products import Scores, centred

from megabert.ops.dropout import (
    ATTENTION_OUTPUT,
    EMBEDDINGS,
    FEED_FORWARD_OUTPUT,
    DropoutStream,
    attention_dropout,
    keep_mask,
    probability_elements,
)

LENGTH, WIDTH, INSTANCES = 512, 1024, 200
NEIGHBOURS = [(0, 1), (1, 0), (1, 1), (1, -1), (0, 2), (2, 0), (0, 8), (8, 0), (0, 16), (16, 0), (0, 64), (0, 512)]
LONGEST, REACH, HEADS, LONG_INSTANCES = 8192, 64, 10, 10

pytestmark = pytest.mark.soak


def add_instance(scores, drop, p, before, *, rows, columns, another):
    """Add the rate, the sums of rows and columns, and products with what was drawn before, under these names."""
    scores.add("rate", drop)
    scores.add_sums(rows, drop, 1, p)
    scores.add_sums(columns, drop, 0, p)
    if before is not None:
        scores.add(f"next {another}", drop * before)


def stream_of(seed, length):
    bounds = torch.tensor([0, length], dtype=torch.int32)
    return DropoutStream.from_batch(torch.tensor([seed], dtype=torch.int32), bounds, torch.arange(length))


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
        add_instance(scores, drop, p, before, rows="tokens", columns="columns", another="instance")
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
            add_instance(scores, drop, p, before, rows="queries", columns="distances", another="head")
            for number, part in enumerate(parts):
                scores.add(f"rate of position {number}", drop[part])
            # Columns are distances: (8, 0) is the element 8 queries and 8 keys on, (8, -8) of the same key.
            scores.add_neighbours(drop, [*NEIGHBOURS[:-2], (8, -8), (8, 8), (16, -16)])
            before = drop
    scores.check()
