"""Local attention against its definition: all pairs, those that are far apart or in other sequences masked."""

import math

import pytest
import torch

from megabert.errors import KernelError
from megabert.ops.dropout import Dropout
from megabert.ops.windowed import plan_band, windowed_attention

HEADS, WIDTH = 2, 6


def inputs(lengths, padding=0):
    """Return random queries, keys and values, boundaries and positions of packed sequences."""
    generator = torch.Generator().manual_seed(len(lengths))
    bounds = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    positions = torch.cat([torch.arange(n) for n in [*lengths, padding]])
    qkv = torch.randn(len(positions), 3 * HEADS * WIDTH, generator=generator, dtype=torch.float64)
    return qkv.requires_grad_(), bounds, positions


def by_definition(qkv, bounds, reach):
    """Attend sequence by sequence with a matrix of all distances."""
    out = torch.zeros(len(qkv), HEADS * WIDTH, dtype=qkv.dtype)
    for start, stop in torch.stack([bounds[:-1], bounds[1:]], 1).tolist():
        q, k, v = qkv[start:stop].unflatten(1, (3, HEADS, WIDTH)).permute(1, 2, 0, 3)
        index = torch.arange(stop - start)
        is_far = (index[:, None] - index).abs() > reach
        scores = (q @ k.mT / math.sqrt(WIDTH)).masked_fill(is_far, -torch.inf)
        out[start:stop] = (scores.softmax(-1) @ v).transpose(0, 1).flatten(1)
    return out


@pytest.mark.parametrize("reach", [1, 3, 16, 21, 200])
@pytest.mark.parametrize(
    ("lengths", "padding"), [([1], 0), ([16], 0), ([50, 1, 33, 0, 7], 0), ([90], 5), ([15, 17], 40)]
)
def test_values_and_gradients_are_the_definitions(lengths, padding, reach):
    qkv, bounds, positions = inputs(lengths, padding)
    out = windowed_attention(qkv, band=plan_band(bounds, positions, reach=reach), num_heads=HEADS)
    expected = by_definition(qkv, bounds, reach)
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)
    weights = torch.randn_like(out)
    (gradient,), (expected_gradient,) = (torch.autograd.grad((o * weights).sum(), qkv) for o in (out, expected))
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-11, atol=1e-11)


def test_dropped_share_and_mean_are_those_of_the_probability():
    lengths = [400]
    qkv, bounds, positions = inputs(lengths)
    qkv = torch.zeros_like(qkv)
    qkv[:, 2 * HEADS * WIDTH :] = 1  # equal scores, so that the context is the kept share of the keys, scaled
    seeds = torch.randint(-(2**31), 2**31, (400,), generator=torch.Generator().manual_seed(1)).to(torch.int32)
    band = plan_band(bounds, positions, reach=32)
    out = windowed_attention(qkv, band=band, num_heads=HEADS, dropout=Dropout(0.25, seeds))
    assert out.mean().item() == pytest.approx(1, abs=0.02)
    kept = out[32:-32].unflatten(1, (HEADS, WIDTH))[:, :, 0] * 0.75 * 65
    torch.testing.assert_close(kept, kept.round(), rtol=0, atol=1e-9)
    assert kept.std().item() == pytest.approx(math.sqrt(65 * 0.25 * 0.75), rel=0.15)
    assert (kept[:, 0] != kept[:, 1]).any(), "heads share a mask"


def test_other_backends_are_refused():
    qkv, bounds, positions = inputs([5])
    with pytest.raises(KernelError, match=r"windowed_attention=triton: .* has no such backend"):
        windowed_attention(qkv, band=plan_band(bounds, positions, reach=2), num_heads=HEADS, backend="triton")
