from dataclasses import replace

import numpy as np
import pytest
from support.made_shards import make_instances, write_shards

from megabert.data.mixture import Mixture
from megabert.data.packing import RankShare, shape_for
from megabert.data.step_packer import validation_batches
from megabert.tokens.shards.shard_set import ShardSet
from megabert.tooling.reports.report import fit_unigram


@pytest.mark.parametrize("masking", ["static", "dynamic"])
def test_baseline_scores_the_positions_that_validation_scores(tmp_path, masking):
    instances = [make_instances(count, 32, 50, seed) for seed, count in enumerate((200, 40))]
    if masking == "dynamic":
        instances = [[replace(row, masked_lm_positions=[], masked_lm_ids=[]) for row in rows] for rows in instances]
    shards = {"train": [instances[0]], "validation": [instances[1]]}
    folder = write_shards(tmp_path / "instances", shards, vocab_size=50, masking=masking)
    train, held_out = ShardSet.open(folder), ShardSet.open(folder, "validation")
    shape = shape_for(held_out.statistics, global_batch_size=30, world_size=1, micro_batch_tokens=256)
    targets = np.concatenate(
        [batch.masked_ids_M.numpy() for batch in validation_batches(held_out, RankShare(shape=shape), max_instances=30)]
    )
    assert targets.size > 30

    found = fit_unigram(Mixture((train,)), Mixture((held_out,)), max_instances=30)
    assert found.loss == pytest.approx(-np.log(found.counts[targets] / found.counts.sum()).mean())
    assert found.loss > 3, "words are as frequent as each other here: log(45) nats"
    assert found.accuracy == pytest.approx((targets == found.counts.argmax()).mean())


def test_baseline_of_several_sources_weights_their_words_by_the_shares(tmp_path):
    """A source of half the rows and three quarters of the instances counts three times as much as the other one."""
    opened = []
    for seed in (1, 2):
        rows = make_instances(60, 32, 50, seed)
        folder = write_shards(
            tmp_path / str(seed) / "instances", {"train": [rows], "validation": [rows]}, vocab_size=50
        )
        opened.append([ShardSet.open(folder, split) for split in ("train", "validation")])
    train, held_out = (Mixture(sources, ("a", "b"), (3, 1)) for sources in zip(*opened, strict=True))
    alone = [
        fit_unigram(Mixture((source,)), Mixture((source,)), max_instances=9).counts - 1 for source in train.sources
    ]
    found = fit_unigram(train, held_out, max_instances=20)
    assert [[count for _, count in held_out.scored(limit)] for limit in (20, 1, 1000)] == [[15, 5], [1, 1], [60, 60]]
    assert np.allclose(found.counts, 1 + 1.5 * alone[0] + 0.5 * alone[1])
    targets = [
        source.columns(((0, count),)).masked_ids for source, count in zip(held_out.sources, (15, 5), strict=True)
    ]
    assert found.loss == pytest.approx(-np.log(found.counts[np.concatenate(targets)] / found.counts.sum()).mean())
