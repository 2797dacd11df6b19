"""The stream of batches: its instances, its masks, its padding, and that neither ranks nor budget change it."""

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from megabert.config.phase import PhaseConfig
from megabert.data.batch import IGNORED, instance_seeds, probe_batch
from megabert.data.dynamic_masking import masked_statistics, phase_masking
from megabert.data.loader import PackedLoader
from megabert.data.order import BEGINNING, DataPosition, EpochOrder, PositionRange
from megabert.data.packing import MicroShape, shape_for
from megabert.data.shard_set import ShardSet
from megabert.data.step_packer import RankShare, StepPacker, validation_batches
from megabert.errors import ConfigError
from megabert.masking import MaskingOptions
from megabert.schema import parse_json, to_json

SEED = 5


def _shape(shards, global_batch_size, world_size=1, budget=256):
    return shape_for(
        shards.statistics, global_batch_size=global_batch_size, world_size=world_size, micro_batch_tokens=budget
    )


def _loader(shards, *, global_batch_size=50, world_size=1, rank=0, budget=256, pad=False, **options):
    shape = _shape(shards, global_batch_size, world_size, budget)
    share = RankShare(shape=shape, rank=rank, world_size=world_size, pad=pad)
    options.setdefault("num_steps", 4)
    return PackedLoader(StepPacker(shards, seed=SEED, global_batch_size=global_batch_size, share=share), **options)


def _steps(shards, **options):
    with _loader(shards, **options) as loader:
        return list(loader)


def _sequences(micro_batch):
    """What a micro-batch holds, sequence by sequence: (seed, tokens, segment ids, label, masked positions, ids)."""
    cu = micro_batch.cu_seqlens.tolist()
    masked = list(zip(micro_batch.masked_positions_M.tolist(), micro_batch.masked_ids_M.tolist(), strict=True))
    sequences = []
    for b in range(micro_batch.num_instances):
        first, stop = cu[b], cu[b + 1]
        assert micro_batch.position_ids_T[first:stop].tolist() == list(range(stop - first))
        inside = [(p - first, i) for p, i in masked if first <= p < stop and i != IGNORED]
        sequences.append(
            (
                int(micro_batch.instance_seeds_B[b]),
                tuple(micro_batch.input_ids_T[first:stop].tolist()),
                tuple(micro_batch.segment_ids_T[first:stop].tolist()),
                int(micro_batch.next_sentence_label_B[b]),
                tuple(inside),
            )
        )
    return sequences


def _global_batches(shards, world_size=1, **options):
    """Each step's sequences over all ranks, sorted; checks that ranks agree."""
    ranks = [_steps(shards, world_size=world_size, rank=rank, **options) for rank in range(world_size)]
    batches = []
    for steps in zip(*ranks, strict=True):
        assert len({len(s.micro_batches) for s in steps}) == 1
        assert len({(s.number, s.num_masked, s.num_instances, s.num_tokens, s.position_after) for s in steps}) == 1
        sequences = [s for step in steps for b in step.micro_batches for s in _sequences(b)]
        assert len(sequences) == steps[0].num_instances
        batches.append(sorted(sequences))
    return batches


def _slow_sequence(instance, has_label=True):
    b = instance.segment_b_start
    return (
        tuple(instance.input_ids),
        (0,) * b + (1,) * (len(instance.input_ids) - b),
        instance.next_sentence_label if has_label else IGNORED,
        tuple(zip(instance.masked_lm_positions, instance.masked_lm_ids, strict=True)),
    )


@pytest.fixture
def shards(shard_folder):
    return ShardSet.open(shard_folder)


@pytest.mark.parametrize("pad", [False, True])
def test_global_batches_equal_a_slow_construction_row_by_row(shards, train_instances, pad):
    batches = _global_batches(shards, global_batch_size=300, world_size=2, num_steps=5, pad=pad)
    order = [row for epoch in (0, 1) for row in EpochOrder(1111, SEED, epoch).rows(0, 1111)]
    for k, batch in enumerate(batches):
        expected = sorted(_slow_sequence(train_instances[row]) for row in order[300 * k : 300 * (k + 1)])
        assert sorted(s[1:] for s in batch) == expected


GROWING = PhaseConfig(steps=9, global_batch_size=211, learning_rate=1.0, initial_batch_size=37, batch_warmup_steps=5)


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_growing_batches_are_the_instances_by_hand_on_any_world(shards, train_instances, world_size):
    shape = _shape(shards, GROWING.global_batch_size, world_size)

    def steps(rank, first, position):
        share = RankShare(shape=shape, rank=rank, world_size=world_size)
        packer = StepPacker(shards, seed=SEED, global_batch_size=lambda n: GROWING.batch_size(n - 40), share=share)
        with PackedLoader(packer, position=position, first_number=40 + first, num_steps=7 - first) as loader:
            return list(loader)

    order = [row for epoch in (0, 1) for row in EpochOrder(1111, SEED, epoch).rows(0, 1111)]
    ranks = [steps(rank, 0, BEGINNING) for rank in range(world_size)]
    read = 0
    for size, *shares in zip([37, 71, 106, 141, 176, 211, 211], *ranks, strict=True):
        sequences = [s[1:] for share in shares for batch in share.micro_batches for s in _sequences(batch)]
        assert sorted(sequences) == sorted(_slow_sequence(train_instances[row]) for row in order[read : read + size])
        read += size
    # Resumed within the ramp: the number of the batch and its position say it all.
    again = steps(0, 3, ranks[0][2].position_after)
    assert [batch.num_instances for batch in again] == [141, 176, 211, 211]
    for one, other in zip(again, ranks[0][3:], strict=True):
        assert all(
            torch.equal(a.input_ids_T, b.input_ids_T)
            for a, b in zip(one.micro_batches, other.micro_batches, strict=True)
        )


def test_each_row_comes_once_an_epoch(shards, train_instances):
    batches = _global_batches(shards, global_batch_size=101, num_steps=11)
    assert sorted(s[1:] for b in batches for s in b) == sorted(map(_slow_sequence, train_instances))


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("budget", [64, 1000])
@pytest.mark.parametrize("global_batch_size", [5, 50])
def test_global_batches_and_seeds_depend_on_neither_ranks_nor_budget(shards, world_size, budget, global_batch_size):
    expected = _global_batches(shards, global_batch_size=global_batch_size)
    options = {"global_batch_size": global_batch_size, "world_size": world_size, "budget": budget}
    assert _global_batches(shards, **options) == expected


def test_seeds_differ_between_instances_and_steps(shards):
    steps = _steps(shards, num_steps=20)
    seeds = torch.cat([b.instance_seeds_B for s in steps for b in s.micro_batches])
    assert seeds.dtype == torch.int32
    assert seeds.unique().numel() == seeds.numel() == 1000


def test_more_ranks_than_instances_give_empty_micro_batches(shards):
    steps = _steps(shards, global_batch_size=3, world_size=8, rank=7, num_steps=1)
    [empty] = steps[0].micro_batches
    assert (empty.num_instances, empty.num_tokens, empty.num_masked) == (0, 0, 0)
    assert empty.cu_seqlens.tolist() == [0, 0]
    assert empty.masked_ids_M.tolist() == [IGNORED]
    assert empty.next_sentence_label_B.tolist() == [IGNORED]
    assert empty.input_ids_T.shape == (1,)


@pytest.mark.parametrize("after", [1, 7, 25])
def test_resuming_from_position_after_equals_the_unbroken_stream(shards, after):
    unbroken = _steps(shards, num_steps=30)  # more than an epoch
    position = parse_json(
        json.dumps(to_json(unbroken[after - 1].position_after)), DataPosition, where="checkpoint", remedy=""
    )
    resumed = _steps(shards, position=position, first_number=after + 1, num_steps=30 - after)
    for a, b in zip(resumed, unbroken[after:], strict=True):
        assert (a.number, a.position_after) == (b.number, b.position_after)
        assert [_sequences(m) for m in a.micro_batches] == [_sequences(m) for m in b.micro_batches]


def test_skipped_ranges_are_left_out_exactly(shards, train_instances):
    position = BEGINNING.skipping((PositionRange(0, 30, 60), PositionRange(0, 1000, 1111)))
    [first, *_] = _global_batches(shards, global_batch_size=50, num_steps=1, position=position)
    rows = EpochOrder(1111, SEED, 0).rows(0, 80)
    rows = np.concatenate([rows[:30], rows[60:]])
    assert sorted(s[1:] for s in first) == sorted(_slow_sequence(train_instances[row]) for row in rows)


def test_batch_may_exceed_the_corpus(shards):
    [step] = _steps(shards, global_batch_size=2500, num_steps=1, budget=4000)
    assert step.num_instances == 2500
    assert step.position_after == DataPosition(2, 2500 - 2222)


def test_padding_is_static_and_labelled_as_such(shards):
    shape = MicroShape(tokens=300, sequences=20, masked=60, token_multiple=300, masked_multiple=60)
    packer = StepPacker(shards, seed=1, global_batch_size=40, share=RankShare(shape=shape, pad=True))
    with PackedLoader(packer, num_steps=3) as loader:
        batches = [b for step in loader for b in step.micro_batches]
    for batch in batches:
        T, B, M = batch.num_tokens, batch.num_instances, batch.num_masked
        assert batch.input_ids_T.shape == batch.position_ids_T.shape == batch.segment_ids_T.shape == (300,)
        assert batch.cu_seqlens.shape == (21,)
        assert batch.masked_ids_M.shape == batch.masked_positions_M.shape == (60,)
        assert batch.max_seqlen == 32
        assert batch.cu_seqlens[B:].tolist() == [T] * (21 - B)
        assert not batch.input_ids_T[T:].any()  # the pad id is 0
        assert batch.masked_positions_M[:M].max() < T
        assert (batch.masked_ids_M[M:] == IGNORED).all()
        assert (batch.masked_ids_M[:M] >= 0).all()
        assert (batch.next_sentence_label_B[B:] == IGNORED).all()


@pytest.mark.parametrize("objective", ["nsp", "sop", "none"])
def test_objectives(make, tmp_path, objective):
    rows = make.instances(30, 64, 70_000, seed=3, objective=objective)
    folder = make.shards(tmp_path / objective, {"train": [rows]}, length=64, vocab_size=70_000, objective=objective)
    [batch] = _global_batches(ShardSet.open(folder), global_batch_size=30, num_steps=1)
    assert sorted(s[1:] for s in batch) == sorted(_slow_sequence(r, objective != "none") for r in rows)


def test_micro_batch_dtypes_and_copies(shards):
    [step] = _steps(shards, num_steps=1)
    batch = step.micro_batches[0].to("cpu")
    int32 = {"cu_seqlens", "instance_seeds_B"}
    for name in step.micro_batches[0].__dataclass_fields__:
        value = getattr(batch, name)
        if isinstance(value, torch.Tensor):
            assert value.dtype == (torch.int32 if name in int32 else torch.int64)
    assert batch.max_seqlen == int(batch.cu_seqlens.diff().max())


def test_probe_batch_is_a_full_micro_batch():
    batch = probe_batch(tokens=1000, length=128)
    assert batch.cu_seqlens.tolist() == [*range(0, 1000, 128), 1000]
    assert batch.input_ids_T.numel() == batch.num_tokens == 1000
    assert batch.masked_positions_M.max() < 1000
    assert batch.num_masked == 157


@pytest.mark.parametrize("world_size", [1, 3, 8])
@pytest.mark.parametrize("max_instances", [None, 2, 40])
def test_validation_batches_hold_the_first_instances_once(
    shard_folder, validation_instances, world_size, max_instances
):
    shards = ShardSet.open(shard_folder, "validation")
    shape = _shape(shards, 20, world_size)
    shares = [RankShare(shape=shape, rank=rank, world_size=world_size, pad=True) for rank in range(world_size)]
    ranks = [list(validation_batches(shards, share, max_instances=max_instances)) for share in shares]
    assert len({len(batches) for batches in ranks}) == 1
    sequences = sorted(s[1:] for batches in ranks for b in batches for s in _sequences(b))
    assert sequences == sorted(map(_slow_sequence, validation_instances[:max_instances]))
    seeds = [seed for batches in ranks for b in batches for seed in b.instance_seeds_B[: b.num_instances].tolist()]
    assert sorted(seeds) == sorted(instance_seeds(0, 0, np.arange(len(sequences))).tolist())


@pytest.fixture
def unmasked(make, tmp_path):
    """Shards whose masks are left to the loader, and the ids of their instances."""
    rows = [replace(row, masked_lm_positions=[], masked_lm_ids=[]) for row in make.instances(300, 32, 1000, seed=0)]
    return ShardSet.open(make.shards(tmp_path / "dynamic", {"train": [rows]}, masking="dynamic"))


def masked_instances(steps):
    """(ids with the masks undone, positions, ids shown) of every instance, in the order of the stream."""
    instances = []
    for step in steps:
        for micro in step.micro_batches:
            starts = micro.cu_seqlens.tolist()
            ids = micro.input_ids_T.clone()
            ids[micro.masked_positions_M] = micro.masked_ids_M
            for start, stop in pairwise(starts):
                positions = micro.masked_positions_M[
                    (micro.masked_positions_M >= start) & (micro.masked_positions_M < stop)
                ]
                shown = micro.input_ids_T[start:stop].tolist()
                instances.append((tuple(ids[start:stop].tolist()), tuple((positions - start).tolist()), tuple(shown)))
    return instances


def test_dynamic_masks_differ_by_epoch_and_not_by_ranks(unmasked):
    options = {"global_batch_size": 100, "num_steps": 6}
    with _loader(unmasked, **options) as loader:
        steps = list(loader)
    alone = masked_instances(steps)
    assert len(alone) == 600
    assert all(step.num_masked == sum(b.num_masked for b in step.micro_batches) for step in steps)
    by_text = {}
    for text, positions, _ in alone:
        by_text.setdefault(text, []).append(positions)
    assert all(len(positions) == 2 for positions in by_text.values())
    assert sum(first != second for first, second in by_text.values()) > 0.9 * len(by_text)
    shared = []
    for rank in range(2):
        with _loader(unmasked, rank=rank, world_size=2, **options) as loader:
            shared += masked_instances(list(loader))
    assert sorted(shared) == sorted(alone)


def test_dynamic_masks_have_the_share_of_static_ones(unmasked):
    with _loader(unmasked, global_batch_size=300, num_steps=4) as loader:
        instances = masked_instances(list(loader))
    predicted = sum(len(positions) for _, positions, _ in instances)
    tokens = sum(len(text) for text, _, _ in instances)
    assert abs(predicted / tokens - 0.15) < 0.02
    shown = [ids[position] for _, positions, ids in instances for position in positions]
    assert abs(shown.count(unmasked.metadata.special_ids["mask"]) / predicted - 0.8) < 0.03


@pytest.mark.parametrize("share", [0.05, 0.3, 0.45])
def test_masks_of_a_phase_have_its_share_and_its_actions(unmasked, share):
    phase = PhaseConfig(
        steps=1, global_batch_size=1, learning_rate=1.0, masked_lm_prob=share, mask_actions=(0.5, 0.2, 0.3)
    )
    masking = phase_masking(phase, unmasked.metadata)
    shape = shape_for(
        masked_statistics(unmasked.statistics, masking), global_batch_size=300, world_size=1, micro_batch_tokens=512
    )
    packer = StepPacker(
        unmasked, seed=SEED, global_batch_size=300, share=RankShare(shape=shape, pad=True), masking=masking
    )
    with PackedLoader(packer, num_steps=4) as loader:
        steps = list(loader)
    instances = masked_instances(replace(step, micro_batches=_unpadded(step)) for step in steps)
    # The number of predictions is google-research/bert's rule for each length, counted exactly.
    lengths = [len(text) for text, _, _ in instances]
    most = -(-unmasked.metadata.max_predictions_per_seq * share // 0.15)
    assert [len(positions) for _, positions, _ in instances] == [
        min(most, max(1, round(length * share))) for length in lengths
    ]
    shown = [(text[p], ids[p]) for text, positions, ids in instances for p in positions]
    masked = sum(seen == unmasked.metadata.special_ids["mask"] for _, seen in shown) / len(shown)
    kept = sum(original == seen for original, seen in shown) / len(shown)
    assert masked == pytest.approx(0.5, abs=0.06)
    assert kept == pytest.approx(0.3, abs=0.06)


def _unpadded(step):
    """The micro-batches cut to their real part."""
    return [
        replace(
            batch,
            input_ids_T=batch.input_ids_T[: batch.num_tokens],
            cu_seqlens=batch.cu_seqlens[: batch.num_instances + 1],
            masked_positions_M=batch.masked_positions_M[: batch.num_masked],
            masked_ids_M=batch.masked_ids_M[: batch.num_masked],
        )
        for batch in step.micro_batches
    ]


def test_phase_that_names_no_masks_has_those_of_the_shards(unmasked, shards):
    phase = PhaseConfig(steps=1, global_batch_size=1, learning_rate=1.0)
    assert phase_masking(phase, unmasked.metadata) == MaskingOptions.of(unmasked.metadata)
    assert masked_statistics(unmasked.statistics, phase_masking(phase, unmasked.metadata)) == unmasked.statistics
    assert phase_masking(phase, shards.metadata) is None
    assert masked_statistics(shards.statistics, None) == shards.statistics


def test_dynamic_masks_of_validation_stay(unmasked):
    share = RankShare(shape=_shape(unmasked, 64, 1, 512))
    first, second = (list(validation_batches(unmasked, share)) for _ in range(2))
    assert sum(batch.num_masked for batch in first) > 0
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one.input_ids_T, other.input_ids_T)


@pytest.mark.parametrize("options", [{"rank": 2, "world_size": 2}, {"rank": -1}])
def test_impossible_rank_is_refused(shards, options):
    with pytest.raises(ConfigError, match="rank"):
        _loader(shards, **options)
