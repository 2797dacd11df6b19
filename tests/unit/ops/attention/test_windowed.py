"""Local attention against its definition: all pairs, those that are far apart or in other sequences masked."""

import math
from itertools import pairwise

import pytest
import torch

from megabert.ops.attention.windowed import plan_band, windowed_attention
from megabert.ops.dropout import DropoutStream, Heads, attention_dropout, probability_mask

HEADS, WIDTH = 2, 6


def inputs(lengths, padding=0):
    """Return random queries, keys and values, boundaries and positions of packed sequences."""
    generator = torch.Generator().manual_seed(len(lengths))
    bounds = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    positions = torch.cat([torch.arange(n) for n in [*lengths, padding]])
    qkv = torch.randn(len(positions), 3 * HEADS * WIDTH, generator=generator, dtype=torch.float64)
    return qkv.requires_grad_(), bounds, positions


def by_definition(qkv, bounds, reach, site=None):
    """Attend sequence by sequence with a matrix of all distances."""
    out = torch.zeros(len(qkv), HEADS * WIDTH, dtype=qkv.dtype)
    for number, (start, stop) in enumerate(pairwise(bounds.tolist())):
        q, k, v = qkv[start:stop].unflatten(1, (3, HEADS, WIDTH)).permute(1, 2, 0, 3)
        index = torch.arange(stop - start)
        is_far = (index[:, None] - index).abs() > reach
        weights = (q @ k.mT / math.sqrt(WIDTH)).masked_fill(is_far, -torch.inf).softmax(-1)
        if site is not None:
            weights = weights * probability_mask(site, site.keys_BN()[number], stop - start) * site.scale
        out[start:stop] = (weights @ v).transpose(0, 1).flatten(1)
    return out


@pytest.mark.parametrize("reach", [1, 3, 16, 21, 200])
@pytest.mark.parametrize(
    ("lengths", "padding"), [([1], 0), ([16], 0), ([50, 1, 33, 0, 7], 0), ([90], 5), ([15, 17], 40)]
)
def test_values_and_gradients_are_the_definitions(lengths, padding, reach):
    qkv, bounds, positions = inputs(lengths, padding)
    out = windowed_attention(qkv, plan_band(bounds, positions, reach=reach), Heads(HEADS))
    expected = by_definition(qkv, bounds, reach)
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)
    weights = torch.randn_like(out)
    (gradient,), (expected_gradient,) = (torch.autograd.grad((o * weights).sum(), qkv) for o in (out, expected))
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-11, atol=1e-11)


def test_dropped_are_the_probabilities_that_attention_drops():
    lengths, reach = [50, 0, 37], 32
    qkv, bounds, positions = inputs(lengths, padding=4)
    stream = DropoutStream(torch.empty(0, dtype=torch.int32), torch.tensor([5, 6, 7], dtype=torch.int32))
    site = attention_dropout(stream, layer=2, probability=0.25, num_heads=HEADS)
    assert site is not None
    out = windowed_attention(qkv, plan_band(bounds, positions, reach=reach), Heads(HEADS, site))
    torch.testing.assert_close(out, by_definition(qkv, bounds, reach, site), rtol=1e-12, atol=1e-12)
