"""The packing plan: every instance once, bins that fit and are even, few padded tokens."""

import hashlib

import numpy as np
import pytest

from megabert.data.packing import MicroShape, plan_packing, shape_for
from megabert.foundation.errors import ConfigError, DataError
from megabert.tokens.shards.folder import InstanceStatistics


def _corpus(length, count=100_000):
    """Lengths as google's pairing gives them, 15% masked."""
    rng = np.random.default_rng(length)
    lengths = np.where(rng.random(count) < 0.75, length, rng.integers(5, length + 1, count))
    masked = np.clip(np.round(lengths * 0.15), 1, round(length * 0.15)).astype(np.int64)
    statistics = InstanceStatistics(
        rows=count,
        tokens=int(lengths.sum()),
        masked_tokens=int(masked.sum()),
        max_seq_length=length,
        max_masked=round(length * 0.15),
    )
    return lengths, masked, statistics


def _bins(dealt):
    return [ordinals for rank in range(dealt.world_size) for ordinals in dealt.micro_batches(rank)]


def num_micro_steps(dealt):
    return len(dealt.bin_counts) // dealt.world_size


CASES = [(1, 1, 512), (3, 8, 128), (8, 8, 128), (100, 1, 600), (100, 3, 128), (257, 2, 2048), (1000, 7, 1024)]


@pytest.mark.parametrize(("count", "world_size", "budget"), CASES)
def test_each_instance_is_dealt_once_and_every_bin_fits(count, world_size, budget):
    lengths, masked, statistics = _corpus(128)
    shape = shape_for(statistics, global_batch_size=count, world_size=world_size, micro_batch_tokens=budget)
    assert shape.tokens <= budget
    for start in range(0, 5 * count, count):
        chosen = slice(start, start + count)
        dealt = plan_packing(lengths[chosen], masked[chosen], shape, world_size)
        bins = _bins(dealt)
        assert len(bins) == num_micro_steps(dealt) * world_size
        assert sorted(np.concatenate(bins)) == list(range(count))
        padded = shape.padded(dealt.max_tokens, dealt.max_masked)
        for ordinals in bins:
            assert np.all(np.diff(ordinals) > 0)
            assert lengths[chosen][ordinals].sum() <= padded.tokens <= shape.tokens
            assert masked[chosen][ordinals].sum() <= padded.masked <= shape.masked
            assert len(ordinals) <= shape.sequences


@pytest.mark.parametrize(
    ("length", "global_batch_size", "world_size", "budget"),
    [
        (128, 256, 1, 8192),
        (128, 256, 2, 4096),
        (128, 333, 3, 4096),
        (128, 4096, 7, 16384),
        (128, 65536, 64, 32768),
        (128, 65536, 512, 4096),
        (512, 256, 1, 8192),
        (512, 4096, 8, 16384),
        (512, 32768, 64, 65536),
    ],
)
def test_at_least_99_percent_of_padded_tokens_are_real(length, global_batch_size, world_size, budget):
    # A share of several micro-batches of 16 instances or more.
    lengths, masked, statistics = _corpus(length)
    shape = shape_for(statistics, global_batch_size=global_batch_size, world_size=world_size, micro_batch_tokens=budget)
    rng = np.random.default_rng(0)
    real = held = 0
    shapes = set()
    for _ in range(10):
        chosen = rng.integers(0, len(lengths), global_batch_size)
        dealt = plan_packing(lengths[chosen], masked[chosen], shape, world_size)
        padded = shape.padded(dealt.max_tokens, dealt.max_masked)
        assert num_micro_steps(dealt) >= 3
        real += lengths[chosen].sum()
        held += padded.tokens * num_micro_steps(dealt) * world_size
        shapes.add(padded)
    assert real / held >= 0.99
    if global_batch_size >= 4096:
        assert len(shapes) <= 6  # few static shapes


def test_bins_are_evener_than_plain_zigzag():
    lengths, masked, _ = _corpus(512)
    shape = MicroShape(tokens=32 * 512, sequences=1000, masked=5000)
    count, bins = 250, 8
    excess = zigzag_excess = 0
    for chosen in (slice(start, start + count) for start in range(0, 50 * count, count)):
        dealt = plan_packing(lengths[chosen], masked[chosen], shape, bins)
        mean = lengths[chosen].sum() / bins
        excess += dealt.max_tokens - mean
        turn = np.arange(count) % (2 * bins)
        sums = np.bincount(np.minimum(turn, 2 * bins - 1 - turn), np.sort(lengths[chosen])[::-1])
        zigzag_excess += sums.max() - mean
    assert num_micro_steps(dealt) == 1
    assert excess < zigzag_excess / 2


def test_sequence_limit_raises_the_micro_steps():
    shape = MicroShape(tokens=10_000, sequences=3, masked=1000)
    dealt = plan_packing(np.full(10, 5), np.ones(10, int), shape, 1)
    assert num_micro_steps(dealt) == 4
    lengths = np.array([100, *[5] * 20])  # evened by tokens, the short ones would share a bin
    dealt = plan_packing(lengths, np.ones(21, int), MicroShape(tokens=200, sequences=11, masked=100), 1)
    assert dealt.bin_counts.max() <= 11


@pytest.mark.parametrize(
    ("count", "world_size", "budget", "fullest", "digest"),
    [(257, 2, 2048, 1844, "69cd7ab766e06ab2"), (4096, 7, 16384, 13176, "a802b72039f77a02")],
)
def test_plan_is_pinned(count, world_size, budget, fullest, digest):
    # A change of these numbers changes which rank sums what: resumed runs would no longer be equal bit for bit.
    rng = np.random.default_rng(count)
    lengths = np.where(rng.random(count) < 0.75, 128, rng.integers(5, 129, count))
    masked = np.maximum(1, np.round(lengths * 0.15)).astype(np.int64)
    totals = {"tokens": int(lengths.sum()), "masked_tokens": int(masked.sum())}
    statistics = InstanceStatistics(rows=count, max_seq_length=128, max_masked=19, **totals)
    shape = shape_for(statistics, global_batch_size=count, world_size=world_size, micro_batch_tokens=budget)
    dealt = plan_packing(lengths, masked, shape, world_size)
    assert dealt.max_tokens == fullest
    assert hashlib.sha256(dealt.bin_of_instance.astype("<i8").tobytes()).hexdigest()[:16] == digest


def test_budget_below_one_instance_names_both():
    statistics = _corpus(128)[2]
    with pytest.raises(ConfigError, match=r"micro_batch_tokens=127 is below max_seq_length=128"):
        shape_for(statistics, global_batch_size=8, world_size=1, micro_batch_tokens=127)


def test_instance_longer_than_the_shape_is_an_error():
    with pytest.raises(DataError, match="129 tokens"):
        plan_packing(np.array([129]), np.array([1]), MicroShape(tokens=128, sequences=1, masked=20), 1)
