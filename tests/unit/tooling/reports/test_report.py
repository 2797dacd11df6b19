from dataclasses import replace

import numpy as np
import pytest
from support.made_shards import make_instances, write_shards

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

    found = fit_unigram(train, held_out, max_instances=30)
    assert found.loss == pytest.approx(-np.log(found.counts[targets] / found.counts.sum()).mean())
    assert found.loss > 3, "words are as frequent as each other here: log(45) nats"
    assert found.accuracy == pytest.approx((targets == found.counts.argmax()).mean())
