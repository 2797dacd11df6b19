"""Shifted positions: in range, spread evenly, [CLS] at 0, the same on any ranks and after a resume."""

from itertools import chain, pairwise

import numpy as np
from unit.data.streams import shape_of, steps_of

from megabert.data.packing import RankShare
from megabert.data.step_packer import position_offsets, validation_batches

NUM_POSITIONS = 96  # three times the longest instance


def shifted(steps):
    """(instance seed, positions) of every instance, sorted within each step."""
    return [
        sorted(
            (int(micro.instance_seeds_B[b]), tuple(micro.position_ids_T[start:stop].tolist()))
            for micro in step.micro_batches
            for b, (start, stop) in enumerate(pairwise(micro.cu_seqlens.tolist()[: micro.num_instances + 1]))
        )
        for step in steps
    ]


def test_instance_is_shifted_as_a_whole_but_for_its_first_token(shards):
    starts = []
    for step in shifted(steps_of(shards, num_positions=NUM_POSITIONS, pad=True)):
        for _, (cls, *others) in step:
            assert cls == 0
            assert others == list(range(others[0], others[0] + len(others)))
            assert others[0] >= 1
            assert others[-1] < NUM_POSITIONS
            starts.append(others[0])
    assert len(set(starts)) > 40


def test_offsets_are_the_same_on_any_ranks_and_after_a_resume(shards):
    options = {"num_positions": NUM_POSITIONS, "num_steps": 4}
    whole = steps_of(shards, **options)
    ranks = [shifted(steps_of(shards, world_size=3, rank=rank, budget=100, **options)) for rank in range(3)]
    assert [sorted(chain(*step)) for step in zip(*ranks, strict=True)] == shifted(whole)
    rest = steps_of(
        shards, num_positions=NUM_POSITIONS, num_steps=2, positions=whole[1].positions_after, first_number=3
    )
    assert shifted(rest) == shifted(whole)[2:]


def test_offsets_differ_by_epoch_and_seed_and_are_spread_evenly():
    rows, lengths = np.arange(60_000), np.full(60_000, 32, np.uint16)
    first, second, other = (
        position_offsets(NUM_POSITIONS, lengths, seed, np.full(60_000, epoch), rows)
        for seed, epoch in ((1, 0), (1, 1), (2, 0))
    )
    assert (first != second).mean() > 0.98
    assert (first != other).mean() > 0.98
    counts = np.bincount(first, minlength=NUM_POSITIONS - 32 + 1)
    assert counts.size == NUM_POSITIONS - 32 + 1, "an offset of 64 puts the last token at position 95"
    assert np.square(counts - counts.mean()).sum() / counts.mean() < 110  # chi-square, 64 degrees: p = 0.0003


def test_an_instance_as_long_as_the_table_stays():
    assert position_offsets(32, np.full(3, 32), 0, np.zeros(3, np.int64), np.arange(3)).tolist() == [0, 0, 0]


def test_held_out_instances_are_not_shifted(shards):
    share = RankShare(shape=shape_of(shards, 50))
    for micro in validation_batches(shards, share):
        for start, stop in pairwise(micro.cu_seqlens.tolist()):
            assert micro.position_ids_T[start:stop].tolist() == list(range(stop - start))
