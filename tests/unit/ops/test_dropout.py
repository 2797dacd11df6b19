"""Keyed dropout: the hash, the share that is dropped, independence, and masks that follow the instance."""

import numpy as np
import pytest
import torch

from megabert.foundation.randomness.lowbias32 import lowbias32
from megabert.ops import dropout as ops

SITES = (ops.EMBEDDINGS, ops.ATTENTION_OUTPUT, ops.FEED_FORWARD_OUTPUT)


def stream_of(lengths: list[int], seeds: list[int], *, padding: int = 0) -> ops.DropoutStream:
    bounds = torch.tensor(np.concatenate([[0], np.cumsum(lengths)]), dtype=torch.int32)
    positions = torch.cat([*map(torch.arange, lengths), torch.zeros(padding, dtype=torch.int64)])
    return ops.DropoutStream.from_batch(torch.tensor(seeds, dtype=torch.int32), bounds, positions)


def mask_of(stream: ops.DropoutStream, layer: int, site: int, *, columns: int = 256) -> torch.Tensor:
    keyed = stream.site(layer, site, 0.1)
    assert keyed is not None
    return ops.keep_mask(keyed, keyed.row_keys, columns)


def test_tensor_hash_equals_plain_integers():
    values = torch.randint(-(2**31), 2**31 - 1, (1000,), dtype=torch.int32)
    expected = [lowbias32(value) for value in values.tolist()]
    assert [value & 0xFFFFFFFF for value in ops.lowbias32_(values.clone()).tolist()] == expected


def test_mask_equals_the_definition_in_plain_integers():
    site = ops.Dropout(0.1, torch.tensor([-5, 2**31 - 1, 123456789], dtype=torch.int32))
    words = [[lowbias32(key + e * 0x9E3779B9) for e in range(40)] for key in site.row_keys.tolist()]
    signed = np.array(words, dtype=np.uint32).view(np.int32)
    keep = torch.from_numpy(signed >= round(0.1 * 2**16) * 2**16 - 2**31)
    assert torch.equal(ops.keep_mask(site, site.row_keys, 40), keep)
    assert torch.equal(ops.keep_bits(site, site.row_keys, 40), -keep.int())


@pytest.mark.parametrize("probability", [0.01, 0.1, 0.5, 0.9])
def test_rate_is_the_probability(probability):
    site = stream_of([512] * 16, list(range(16))).site(3, ops.ATTENTION_OUTPUT, probability)
    keep = ops.keep_mask(site, site.row_keys, 768)
    tolerance = 5 * (probability * (1 - probability) / keep.numel()) ** 0.5 + 2**-17
    assert abs(1 - keep.double().mean().item() - probability) < tolerance
    for rate in (1 - keep.double().mean(0), 1 - keep.double().mean(1)):  # of each column, of each row
        deviation = (probability * (1 - probability) / (keep.numel() / rate.numel())) ** 0.5
        assert (rate - probability).abs().max() < 6 * deviation


def test_probability_below_its_resolution_drops_nothing():
    assert stream_of([4], [1]).site(0, ops.EMBEDDINGS, 2**-18) is None
    assert stream_of([4], [1]).site(0, ops.EMBEDDINGS, 0.0) is None


def test_constants_of_sites_layers_and_heads_are_distinct():
    constants = {
        ops.site_constant(layer, site, head) for layer in range(-1, 48) for site in range(4) for head in range(64)
    }
    assert len(constants) == 49 * 4 * 64


def test_masks_of_sites_layers_and_neighbours_are_independent():
    stream = stream_of([256, 256], [11, 12])
    masks = [mask_of(stream, layer, site) for layer in (-1, 0, 1) for site in SITES]
    masks += [
        masks[0].roll(1, 0),
        masks[0].roll(1, 1),
        masks[0].roll(256, 0),
        masks[0].T.repeat(2, 1)[:, :256],
    ]
    dropped = torch.stack([(~mask).double().flatten() for mask in masks])
    correlation = torch.corrcoef(dropped).fill_diagonal_(0)
    assert correlation.abs().max() < 5 / dropped.shape[1] ** 0.5


def test_masks_follow_the_instance_through_any_packing():
    lengths, seeds = [5, 9, 3], [100, -7, 2**31 - 1]
    together = stream_of(lengths, seeds).row_seeds_T.split(lengths)
    other_order = stream_of([3, 0, 5, 9], [2**31 - 1, 0, 100, -7], padding=4).row_seeds_T.split([3, 5, 9, 4])
    for instance, elsewhere in ((0, 1), (1, 2), (2, 0)):
        assert torch.equal(together[instance], other_order[elsewhere])
        alone = stream_of([lengths[instance]], [seeds[instance]]).row_seeds_T
        assert torch.equal(together[instance], alone)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_dropout_keeps_the_mean_and_scales_survivors(dtype):
    site = stream_of([200], [1]).site(-1, ops.EMBEDDINGS, 0.1)
    dropped = ops.dropout(torch.ones(200, 128, dtype=dtype), site)
    assert dropped.dtype == dtype
    assert dropped.unique().tolist() == [0, torch.tensor(site.scale, dtype=dtype).item()]
    assert abs(dropped.double().mean().item() - 1) < 0.02


def test_backward_uses_the_same_mask(make_site):
    site = make_site(50, probability=0.3)
    x = torch.randn(50, 33, requires_grad=True)
    y = ops.dropout(x, site)
    y.backward(torch.ones_like(y))
    assert torch.equal(x.grad == 0, y == 0)
    torch.testing.assert_close(x.grad * x, y)


def test_no_site_is_the_identity():
    x = torch.randn(3, 4)
    assert ops.dropout(x, None) is x


def test_chunks_do_not_show(make_site, monkeypatch):
    site = make_site(57, probability=0.2)
    x = torch.randn(57, 100)
    whole = ops.dropout(x, site)
    monkeypatch.setattr("megabert.ops.dropout.CHUNK", 130)
    assert torch.equal(ops.dropout(x, site), whole)


def test_almost_certain_dropout_keeps_its_last_level():
    rate = ops.DropoutRate(1 - 2**-18)
    assert (rate.level, rate.scale, rate.threshold) == (2**16 - 1, 2**16, 2**31 - 2**16)
