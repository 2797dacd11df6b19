"""Several builds as one stream: shares, order, and that ranks, budgets and restarts change nothing."""

import math
from dataclasses import replace

import numpy as np
import pytest

from megabert.data.mixture import Mixture, apportion, open_mixture
from megabert.data.order import DataPosition, EpochOrder, PositionRange
from megabert.data.packing import RankShare, shape_for
from megabert.data.step_packer import StepPacker
from megabert.foundation.errors import DataError
from megabert.settings.config.loading import load_run_config
from megabert.tokens.shards.shard_set import ShardSet

SEED = 3
SHARES = {
    "two": (3, 7),
    "three": (5, 3, 2),
    "sixteen alike": (1,) * 16,
    "by temperature": tuple(round(2**40 * (size / 1000) ** 0.5) for size in (10, 35, 200, 1000)),
    "one is rare": (1, 9999, 3, 4000),
    "languages": tuple(round(2**40 / rank) for rank in range(1, 31)),
}


@pytest.mark.parametrize("weights", SHARES.values(), ids=SHARES)
def test_counts_are_within_an_instance_of_their_shares(weights):
    """After each of a million instances, one by one; the next one is of one source alone."""
    numbers = np.arange(10**6 + 1)
    added = np.zeros(10**6, np.int64)
    for weight, counts in zip(weights, apportion(weights, numbers), strict=True):
        steps = np.diff(counts)
        assert steps.min() >= 0, "no batch takes an instance back"
        added += steps
        assert np.abs(counts - numbers * (weight / sum(weights))).max() < 1 + 1e-6
    assert (added == 1).all()


def test_counts_are_exact_at_any_distance():
    """Numbers that no float holds, and the same from the middle of a run on."""
    for number in (10**15, 2**53 + 1):
        counts = apportion((1, 2**39, 2**40), number)
        assert sum(counts) == number
        assert abs(counts[0] * (1 + 2**39 + 2**40) - number) <= 1 + 2**39 + 2**40


@pytest.fixture(scope="module")
def sources(make, tmp_path_factory):
    """Three builds: of 300, 170 and 90 instances."""
    folder = tmp_path_factory.mktemp("sources")
    rows = {name: make.instances(count, 32, 1000, seed=count) for name, count in {"a": 300, "b": 170, "c": 90}.items()}
    held_out = {name: make.instances(20, 32, 1000, seed=count) for count, name in enumerate(rows)}
    for name, own in rows.items():
        make.shards(folder / name / "instances" / "32", {"train": [own], "validation": [held_out[name]]})
    return folder, rows


def mixture_of(folder, weights):
    opened = [ShardSet.open(folder / name / "instances" / "32") for name in weights]
    return Mixture(tuple(opened), tuple(weights), tuple(weights.values()))


def test_validation_scores_each_source_at_its_share_but_one_instance_at_least(sources):
    mixture = mixture_of(sources[0], {"a": 1, "b": 10**6, "c": 10**6})
    assert [count for _, count in mixture.scored(20)] == [1, 10, 10]
    assert [count for _, count in mixture.scored(1000)] == [1, 170, 90], "no more than there are"


def packed(mixture, *, size=40, batches=12, world_size=1, rank=0, positions=None, first=0, budget=256):
    totals = mixture.statistics
    shape = shape_for(totals, global_batch_size=size, world_size=world_size, micro_batch_tokens=budget)
    share = RankShare(shape=shape, rank=rank, world_size=world_size)
    packer = StepPacker(mixture, seed=SEED, global_batch_size=size, share=share)
    steps, positions = [], positions or {}
    for number in range(first, batches):
        steps.append(packer.pack(positions, number))
        positions = steps[-1].positions_after
    return steps


def texts_of(step):
    """Dropout key and tokens of each instance of a rank's share."""
    texts = []
    for batch in step.micro_batches:
        cu = batch.cu_seqlens.tolist()
        for b in range(batch.num_instances):
            texts.append((int(batch.instance_seeds_B[b]), tuple(batch.input_ids_T[cu[b] : cu[b + 1]].tolist())))
    return texts


def test_batches_are_the_instances_by_hand(sources):
    folder, rows = sources
    weights = {"a": 5, "b": 3, "c": 2}
    steps = packed(mixture_of(folder, weights), size=37, batches=12)  # no batch has its shares exactly
    orders = {
        name: [row for epoch in range(4) for row in EpochOrder(len(own), SEED, epoch).rows(0, len(own))]
        for name, own in rows.items()
    }
    for number, step in enumerate(steps):
        expected = []
        for index, name in enumerate(weights):
            start, stop = (apportion((5, 3, 2), 37 * n)[index] for n in (number, number + 1))
            expected += [tuple(rows[name][row].input_ids) for row in orders[name][start:stop]]
        assert sorted(text for _, text in texts_of(step)) == sorted(expected)


def test_rows_that_cannot_be_read_stop_the_batch_that_has_them_and_none_before(sources, monkeypatch):
    """Rows of three batches are read at once, of three sources."""
    mixture = mixture_of(sources[0], {"a": 5, "b": 3, "c": 2})
    expected = [texts_of(step) for step in packed(mixture, batches=4)]
    bad = mixture.sources[1]
    row = EpochOrder(bad.num_rows, SEED, 0).rows(0, bad.num_rows)[apportion((5, 3, 2), 160)[1]]  # the first in batch 4
    counted, rows_of = [], ShardSet.rows

    def read(shards, rows, sizes=None):
        counted.append(len(rows))
        if mixture.sources[0].num_rows + row in rows:
            raise DataError("damaged")
        return rows_of(shards, rows, sizes)

    monkeypatch.setattr(ShardSet, "rows", read)
    assert [texts_of(step) for step in packed(mixture, batches=4)] == expected
    assert 120 in counted, "three batches of 40 instances"
    with pytest.raises(DataError, match="damaged"):
        packed(mixture, batches=5)


@pytest.mark.parametrize(("world_size", "budget"), [(2, 256), (3, 64), (7, 256)])
def test_ranks_together_have_the_batches_of_one(sources, world_size, budget):
    mixture = mixture_of(sources[0], {"a": 5, "b": 3, "c": 2})
    alone = packed(mixture, batches=5)
    ranks = [packed(mixture, batches=5, world_size=world_size, rank=rank, budget=budget) for rank in range(world_size)]
    for one, *parts in zip(alone, *ranks, strict=True):
        assert sorted(text for part in parts for text in texts_of(part)) == sorted(texts_of(one))
        assert all(part.positions_after == one.positions_after for part in parts)


def test_a_mixture_of_one_equals_the_single_build(sources):
    single, named = mixture_of(sources[0], {"a": 1}), mixture_of(sources[0], {"a": 12345})
    assert [texts_of(s) for s in packed(single)] == [texts_of(s) for s in packed(named)]


def test_resuming_in_the_middle_of_epochs_equals_the_unbroken_stream(sources):
    mixture = mixture_of(sources[0], {"a": 1, "b": 1, "c": 4})  # c is read three times
    steps = packed(mixture)
    again = packed(mixture, positions=steps[6].positions_after, first=7)
    assert [texts_of(step) for step in again] == [texts_of(step) for step in steps[7:]]
    epochs = {name: place.epoch for name, place in mixture.at(steps[-1].positions_after)}
    assert (epochs["a"], epochs["c"]) == (0, 3)


def test_skipped_data_belong_to_one_source(sources):
    mixture = mixture_of(sources[0], {"a": 1, "b": 1})
    key = mixture.sha256[1]
    skipping = {key: DataPosition(0, 0).skipping((PositionRange(0, 5, 15),))}
    ranges = packed(mixture, batches=1, positions=skipping)[0].ranges
    assert ranges == {mixture.sha256[0]: ((0, 0, 20),), key: ((0, 0, 5), (0, 15, 30))}


def test_equal_rows_of_two_sources_have_masks_of_their_own(make, tmp_path):
    """Two builds of the same instances in the same order, which one has in two shards."""
    rows = [replace(row, masked_lm_positions=[], masked_lm_ids=[]) for row in make.instances(60, 32, 1000, seed=0)]
    for name, shards in {"one": [rows], "two": [rows[:30], rows[30:]]}.items():
        make.shards(tmp_path / name, {"train": shards}, masking="dynamic")
    both = Mixture(tuple(ShardSet.open(tmp_path / name) for name in ("one", "two")), ("a", "b"), (1, 1))
    [step] = packed(both, size=120, batches=1, budget=120 * 32)
    texts = [text for _, text in texts_of(step)]
    assert len(set(texts)) > 110, "the same text twice, masked differently"
    [single] = packed(Mixture(both.sources[:1]), size=60, batches=1, budget=60 * 32)
    assert {text for _, text in texts_of(single)} <= set(texts), "the first source's masks are those of a single build"
    assert len(texts) == 120


def config_of(folder, *, phase=None, **sources):
    flags = {"data": {"sources": {name: str(folder / name) for name in sources or ("a", "b")}}}
    first = {"max_seq_length": 32, "steps": 3, "global_batch_size": 40, "learning_rate": 1e-3, **(phase or {})}
    return load_run_config("debug", flags={**flags, "phases": [first]})


def test_shares_are_of_tokens(sources):
    config = config_of(sources[0], phase={"mixture": {"a": 3.0, "b": 1.0}})
    train, held_out = open_mixture(config, 0)
    counts = apportion(train.weights, 10**6)
    tokens = [
        count * source.statistics.tokens / source.num_rows for count, source in zip(counts, train.sources, strict=True)
    ]
    assert tokens[0] / sum(tokens) == pytest.approx(0.75, abs=1e-5)
    assert held_out.weights == train.weights
    mean = train.statistics.tokens / train.statistics.rows
    assert mean == pytest.approx(sum(tokens) / 10**6, rel=1e-3)


def test_temperature_flattens_the_sizes_and_one_is_by_size(sources):
    sizes = [source.statistics.tokens for source in open_mixture(config_of(sources[0]), 0)[0].sources]
    for temperature in (0.0, 0.5, 1.0):
        train = open_mixture(config_of(sources[0], phase={"temperature": temperature}), 0)[0]
        lengths = [source.statistics.tokens / source.num_rows for source in train.sources]
        tokens = [weight * length for weight, length in zip(train.weights, lengths, strict=True)]
        assert tokens[0] / tokens[1] == pytest.approx((sizes[0] / sizes[1]) ** temperature)
    assert open_mixture(config_of(sources[0]), 0)[0].weights == (300, 170)


def test_a_source_without_a_share_is_not_read(sources):
    train, _ = open_mixture(config_of(sources[0], phase={"mixture": {"a": 0.0, "b": 2.0}}), 0)
    assert train.names == ("b",)


def test_one_folder_twice_is_refused(sources, tmp_path):
    (tmp_path / "a").symlink_to(sources[0] / "a")
    (tmp_path / "b").symlink_to(sources[0] / "a")
    with pytest.raises(DataError, match=r"data\.sources: a and b are the same data"):
        open_mixture(config_of(tmp_path), 0)


def test_a_source_smaller_than_its_part_of_a_batch_is_refused(sources):
    config = config_of(sources[0], phase={"mixture": {"a": 1.0, "b": 9.0}, "global_batch_size": 400})
    with pytest.raises(DataError, match=r"source b has 170 instances, and a batch of phases\[0\] takes 3\d\d of it"):
        open_mixture(config, 0)


def test_passes_are_counted_by_source(sources):
    train, _ = open_mixture(config_of(sources[0]), 0)
    passes = train.passes(940)
    assert passes == {"a": pytest.approx(2.0), "b": pytest.approx(2.0)}
    read = {train.sha256[0]: DataPosition(1, 150)}
    assert train.passes(940, read)["a"] == pytest.approx(3.5)
    assert math.isclose(train.passes(940, read)["b"], 2.0)
