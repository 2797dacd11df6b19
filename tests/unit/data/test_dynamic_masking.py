"""Masks that the loader draws: others each epoch, the same on any ranks, with the share that a phase asks for."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from unit.data.streams import SEED, shape_of, steps_of

from megabert.data.dynamic_masking import count_pieces
from megabert.data.mixture import Mixture
from megabert.data.packing import RankShare, shape_for
from megabert.data.step_packer import StepPacker, validation_batches
from megabert.settings.config.phase import PhaseConfig
from megabert.tokens.shards.shard_set import ShardSet


@pytest.fixture
def unmasked(make, tmp_path):
    """Shards whose masks are left to the loader, and the ids of their instances."""
    rows = [replace(row, masked_lm_positions=[], masked_lm_ids=[]) for row in make.instances(300, 32, 1000, seed=0)]
    return ShardSet.open(make.shards(tmp_path / "dynamic", {"train": [rows]}, masking="dynamic"))


@pytest.fixture
def skewed(make, tmp_path):
    """The same with a few frequent pieces and many rare ones."""
    rows = make.instances(300, 32, 1000, seed=0)
    ids = [[i if i < 5 else 5 + (i - 5) ** 2 // 995 for i in row.input_ids] for row in rows]
    plain = {"masked_lm_positions": [], "masked_lm_ids": []}
    rows = [replace(row, input_ids=own, **plain) for row, own in zip(rows, ids, strict=True)]
    return ShardSet.open(make.shards(tmp_path / "skewed", {"train": [rows]}, masking="dynamic"))


def masked_instances(*steps):
    """(ids with the masks undone, positions, ids shown) of every instance, in the order of the stream."""
    instances = []
    for micro in (micro for step in steps for micro in step.micro_batches):
        ids, places = micro.input_ids_T.clone(), micro.masked_positions_M[: micro.num_masked]
        ids[places] = micro.masked_ids_M[: micro.num_masked]
        for start, stop in pairwise(micro.cu_seqlens[: micro.num_instances + 1].tolist()):
            positions = places[(places >= start) & (places < stop)] - start
            shown = micro.input_ids_T[start:stop].tolist()
            instances.append((tuple(ids[start:stop].tolist()), tuple(positions.tolist()), tuple(shown)))
    return instances


def packed(packer, numbers, place=()):
    """Pack batches of these numbers one after the other."""
    steps, place = [], dict(place)
    for number in numbers:
        steps.append(packer.pack(place, number))
        place = steps[-1].positions_after
    return steps


def test_dynamic_masks_differ_by_epoch_and_not_by_ranks(unmasked):
    options = {"global_batch_size": 100, "num_steps": 6}
    steps = steps_of(unmasked, **options)
    alone = masked_instances(*steps)
    assert len(alone) == 600
    assert all(step.num_masked == sum(b.num_masked for b in step.micro_batches) for step in steps)
    by_text = {}
    for text, positions, _ in alone:
        by_text.setdefault(text, []).append(positions)
    assert all(len(positions) == 2 for positions in by_text.values())
    assert sum(first != second for first, second in by_text.values()) > 0.9 * len(by_text)
    shared = [masked_instances(*steps_of(unmasked, rank=rank, world_size=2, **options)) for rank in range(2)]
    assert sorted(shared[0] + shared[1]) == sorted(alone)


@pytest.mark.parametrize("share", [0.05, 0.3, 0.45])
def test_masks_of_a_phase_have_its_share_and_its_actions(unmasked, share):
    own = {"masked_lm_prob": share, "mask_actions": (0.5, 0.2, 0.3)}
    phase = PhaseConfig(steps=1, global_batch_size=1, learning_rate=1.0, **own)
    instances = masked_instances(*packed(packer_in(unmasked, phase, batch=300, pad=True), range(4)))
    # The number of predictions is google-research/bert's rule for each length, counted exactly.
    lengths = [len(text) for text, _, _ in instances]
    most = -(-unmasked.metadata.max_predictions_per_seq * share // 0.15)
    counts = [len(positions) for _, positions, _ in instances]
    assert counts == [min(most, max(1, round(length * share))) for length in lengths]
    shown = [(text[p], ids[p]) for text, positions, ids in instances for p in positions]
    masked = sum(seen == unmasked.metadata.special_ids["mask"] for _, seen in shown) / len(shown)
    kept = sum(original == seen for original, seen in shown) / len(shown)
    assert masked == pytest.approx(0.5, abs=0.06)
    assert kept == pytest.approx(0.3, abs=0.06)


def test_share_of_a_schedule_is_the_one_of_its_batch_wherever_the_run_begins(unmasked):
    phase = PhaseConfig(steps=5, global_batch_size=60, learning_rate=1.0, masked_lm_prob=0.4, final_masked_lm_prob=0.2)
    batches = packed(packer_in(unmasked, phase, number_of_first=3), range(3, 10))
    shares = [phase.masked_share(batch) for batch in range(7)]
    assert shares == pytest.approx([0.4, 0.35, 0.3, 0.25, 0.2, 0.2, 0.2])
    for batch, share in zip(batches, shares, strict=True):
        most = math.ceil(unmasked.metadata.max_predictions_per_seq * share / 0.15 - 1e-9)
        for text, positions, _ in masked_instances(batch):
            assert len(positions) == min(most, max(1, round(len(text) * share)))
    resumed = packer_in(unmasked, phase, number_of_first=3).pack(batches[2].positions_after, 6)
    assert masked_instances(resumed) == masked_instances(batches[3])


def test_each_instance_draws_its_share_uniformly_and_anew_in_each_epoch(unmasked):
    phase = PhaseConfig(steps=9, global_batch_size=1, learning_rate=1.0, masked_lm_range=(0.1, 0.6))
    whole = packer_in(unmasked, phase, batch=unmasked.num_rows)
    # By the instance's text, since each epoch has its own order.
    epochs = [
        {text: len(positions) / len(text) for text, positions, _ in masked_instances(batch)}
        for batch in packed(whole, range(8))
    ]
    shares = np.array([[epoch[text] for text in epochs[0]] for epoch in epochs])
    assert (shares >= 0.1 - 1 / 24).all()
    assert (shares <= 0.6 + 1 / 24).all()
    # Uniform: mean and variance, within four standard errors of this number of draws.
    count = shares.size
    assert shares.mean() == pytest.approx(0.35, abs=4 * (0.5 / 12**0.5) / count**0.5 + 0.002)
    assert shares.std() == pytest.approx(0.5 / 12**0.5, abs=0.01)
    assert abs(np.corrcoef(shares[0], shares[1])[0, 1]) < 4 / len(shares[0]) ** 0.5
    # The same on two ranks: the plan leaves room for the most, and none is cut off.
    halves = [packer_in(unmasked, phase, batch=unmasked.num_rows, rank=rank, world_size=2) for rank in range(2)]
    shared = [instance for half in halves for instance in masked_instances(half.pack({}, 0))]
    assert sorted(shared) == sorted(masked_instances(whole.pack({}, 0)))


def test_rare_pieces_are_masked_more_often_and_as_many_as_without(skewed):
    """The same on two ranks and after a resume; counts are those of the training shards."""
    instances = skewed.columns(((0, skewed.num_rows),))
    counts = count_pieces(skewed)
    assert np.array_equal(counts, np.bincount(instances.input_ids, minlength=skewed.metadata.vocab_size))
    plain = PhaseConfig(steps=9, global_batch_size=60, learning_rate=1.0, masked_lm_prob=0.3)
    phase = replace(plain, masked_lm_rarity=0.5)
    by_share = packer_in(skewed, plain, batch=skewed.num_rows).pack({}, 0)
    by_rarity = packer_in(skewed, phase, batch=skewed.num_rows).pack({}, 0)
    lengths = [
        sorted((text, len(positions)) for text, positions, _ in masked_instances(b)) for b in (by_share, by_rarity)
    ]
    assert lengths[0] == lengths[1]
    means = []
    for batch in (by_share, by_rarity):
        masked = torch.cat([b.masked_ids_M[b.masked_ids_M >= 0] for b in batch.micro_batches]).numpy()
        means.append(np.log(counts[masked]).mean())
    assert means[1] < means[0] - 0.1
    halves = [packer_in(skewed, phase, batch=skewed.num_rows, rank=rank, world_size=2) for rank in range(2)]
    shared = [instance for half in halves for instance in masked_instances(half.pack({}, 0))]
    assert sorted(shared) == sorted(masked_instances(by_rarity))
    first, second = packed(packer_in(skewed, phase), range(2))
    resumed = packer_in(skewed, phase).pack(first.positions_after, 1)
    assert masked_instances(resumed) == masked_instances(second)


def packer_in(shards, phase, *, batch=None, number_of_first=0, rank=0, world_size=1, pad=False):
    """A packer of a phase's batches, as the trainer makes it."""
    batch = batch or phase.global_batch_size
    sizes = {"global_batch_size": batch, "world_size": world_size, "micro_batch_tokens": 512}
    share = RankShare(shape=shape_for(shards.statistics_in(phase), **sizes), rank=rank, world_size=world_size, pad=pad)
    return StepPacker(
        Mixture((shards,)),
        seed=SEED,
        global_batch_size=batch,
        share=share,
        masking=lambda number: shards.masking_in(phase, number - number_of_first),
    )


def test_phase_that_names_no_masks_has_those_of_the_shards(unmasked, shards):
    phase = PhaseConfig(steps=1, global_batch_size=1, learning_rate=1.0)
    assert unmasked.masking_in(phase) == unmasked.metadata.masking_options
    assert unmasked.statistics_in(phase) == unmasked.statistics
    assert shards.masking_in(phase) is None
    assert shards.statistics_in(phase) == shards.statistics


def test_dynamic_masks_of_validation_stay(unmasked):
    share = RankShare(shape=shape_of(unmasked, 64, 1, 512))
    first, second = (list(validation_batches(unmasked, share)) for _ in range(2))
    assert sum(batch.num_masked for batch in first) > 0
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one.input_ids_T, other.input_ids_T)
