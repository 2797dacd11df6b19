"""The stream of batches: its instances, its padding, and that neither ranks nor budget change it."""

import json

import numpy as np
import pytest
import torch
from unit.data.streams import SEED, shape_of, steps_of

from megabert.data.batch import IGNORED, instance_seeds, probe_batch
from megabert.data.loader import PackedLoader
from megabert.data.mixture import Mixture
from megabert.data.order import BEGINNING, DataPosition, EpochOrder, PositionRange
from megabert.data.packing import MicroShape, RankShare
from megabert.data.step_packer import StepPacker, validation_batches
from megabert.foundation.json_files import parse_json, to_json
from megabert.settings.config.phase import PhaseConfig
from megabert.tokens.shards.shard_set import ShardSet


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
    ranks = [steps_of(shards, world_size=world_size, rank=rank, **options) for rank in range(world_size)]
    batches = []
    for steps in zip(*ranks, strict=True):
        assert len({len(s.micro_batches) for s in steps}) == 1
        assert (
            len({(s.number, s.num_masked, s.num_instances, s.num_tokens, *s.positions_after.values()) for s in steps})
            == 1
        )
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
    shape = shape_of(shards, GROWING.global_batch_size, world_size)

    def steps(rank, first, positions):
        share = RankShare(shape=shape, rank=rank, world_size=world_size)
        packer = StepPacker(
            Mixture((shards,)), seed=SEED, global_batch_size=lambda n: GROWING.numbers_of(n - 40), share=share
        )
        with PackedLoader(packer, positions=positions, first_number=40 + first, num_steps=7 - first) as loader:
            return list(loader)

    order = [row for epoch in (0, 1) for row in EpochOrder(1111, SEED, epoch).rows(0, 1111)]
    ranks = [steps(rank, 0, None) for rank in range(world_size)]
    read = 0
    for size, *shares in zip([37, 71, 106, 141, 176, 211, 211], *ranks, strict=True):
        sequences = [s[1:] for share in shares for batch in share.micro_batches for s in _sequences(batch)]
        assert sorted(sequences) == sorted(_slow_sequence(train_instances[row]) for row in order[read : read + size])
        read += size
    # Resumed within the ramp: the number of the batch and its position say it all.
    again = steps(0, 3, ranks[0][2].positions_after)
    assert [batch.num_instances for batch in again] == [141, 176, 211, 211]
    for one, other in zip(again, ranks[0][3:], strict=True):
        assert all(
            torch.equal(a.input_ids_T, b.input_ids_T)
            for a, b in zip(one.micro_batches, other.micro_batches, strict=True)
        )


@pytest.mark.parametrize(
    ("global_batch_size", "world_size", "budget"), [(50, 1, 1000), (50, 2, 64), (5, 3, 1000), (50, 4, 1000), (5, 8, 64)]
)
def test_global_batches_and_seeds_depend_on_neither_ranks_nor_budget(shards, world_size, budget, global_batch_size):
    expected = _global_batches(shards, global_batch_size=global_batch_size)
    options = {"global_batch_size": global_batch_size, "world_size": world_size, "budget": budget}
    assert _global_batches(shards, **options) == expected


def test_seeds_differ_between_instances_and_steps(shards):
    steps = steps_of(shards, num_steps=20)
    seeds = torch.cat([b.instance_seeds_B for s in steps for b in s.micro_batches])
    assert seeds.dtype == torch.int32
    assert seeds.unique().numel() == seeds.numel() == 1000


def test_more_ranks_than_instances_give_empty_micro_batches(shards):
    steps = steps_of(shards, global_batch_size=3, world_size=8, rank=7, num_steps=1)
    [empty] = steps[0].micro_batches
    assert (empty.num_instances, empty.num_tokens, empty.num_masked) == (0, 0, 0)
    assert empty.cu_seqlens.tolist() == [0, 0]
    assert empty.masked_ids_M.tolist() == [IGNORED]
    assert empty.next_sentence_label_B.tolist() == [IGNORED]
    assert empty.input_ids_T.shape == (1,)


@pytest.mark.parametrize("after", [1, 7, 25])
def test_resuming_from_positions_after_equals_the_unbroken_stream(shards, after):
    unbroken = steps_of(shards, num_steps=30)  # more than an epoch
    positions = parse_json(
        json.dumps(to_json(unbroken[after - 1].positions_after)), dict[str, DataPosition], where="checkpoint", remedy=""
    )
    resumed = steps_of(shards, positions=positions, first_number=after + 1, num_steps=30 - after)
    for a, b in zip(resumed, unbroken[after:], strict=True):
        assert (a.number, a.positions_after) == (b.number, b.positions_after)
        assert [_sequences(m) for m in a.micro_batches] == [_sequences(m) for m in b.micro_batches]


def test_skipped_ranges_are_left_out_exactly(shards, train_instances):
    position = BEGINNING.skipping((PositionRange(0, 30, 60), PositionRange(0, 1000, 1111)))
    [first, *_] = _global_batches(
        shards, global_batch_size=50, num_steps=1, positions={shards.manifest.data_sha256: position}
    )
    rows = EpochOrder(1111, SEED, 0).rows(0, 80)
    rows = np.concatenate([rows[:30], rows[60:]])
    assert sorted(s[1:] for s in first) == sorted(_slow_sequence(train_instances[row]) for row in rows)


def test_batch_may_exceed_the_corpus(shards):
    [step] = steps_of(shards, global_batch_size=2500, num_steps=1, budget=4000)
    assert step.num_instances == 2500
    assert [*step.positions_after.values()] == [DataPosition(2, 2500 - 2222)]


def test_padding_is_static_and_labelled_as_such(shards):
    shape = MicroShape(tokens=300, sequences=20, masked=60, token_multiple=300, masked_multiple=60)
    packer = StepPacker(Mixture((shards,)), seed=1, global_batch_size=40, share=RankShare(shape=shape, pad=True))
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
    [step] = steps_of(shards, num_steps=1)
    batch = step.micro_batches[0].to("cpu")
    int32 = {"cu_seqlens", "instance_seeds_B"}
    for name in step.micro_batches[0].__dataclass_fields__:
        value = getattr(batch, name)
        if isinstance(value, torch.Tensor):
            assert value.dtype == (torch.int32 if name in int32 else torch.int64)
    assert batch.max_seqlen == int(batch.cu_seqlens.diff().max())


def test_probe_batch_is_a_full_micro_batch():
    batch = probe_batch(tokens=1000, length=128)
    assert batch.segment_ids_T.max() == 0, "a RoBERTa has one segment embedding"
    assert batch.cu_seqlens.tolist() == [*range(0, 1000, 128), 1000]
    assert batch.input_ids_T.numel() == batch.num_tokens == 1000
    assert batch.masked_positions_M.max() < 1000
    assert batch.num_masked == 157


@pytest.mark.parametrize("world_size", [1, 3, 8])
@pytest.mark.parametrize("max_instances", [None, 2, 40])
def test_validation_batches_hold_first_instances_once(shard_folder, validation_instances, world_size, max_instances):
    shards = ShardSet.open(shard_folder, "validation")
    shape = shape_of(shards, 20, world_size)
    shares = [RankShare(shape=shape, rank=rank, world_size=world_size, pad=True) for rank in range(world_size)]
    ranks = [list(validation_batches(shards, share, max_instances=max_instances)) for share in shares]
    assert len({len(batches) for batches in ranks}) == 1
    sequences = sorted(s[1:] for batches in ranks for b in batches for s in _sequences(b))
    assert sequences == sorted(map(_slow_sequence, validation_instances[:max_instances]))
    seeds = [seed for batches in ranks for b in batches for seed in b.instance_seeds_B[: b.num_instances].tolist()]
    assert sorted(seeds) == sorted(instance_seeds(0, 0, np.arange(len(sequences))).tolist())
