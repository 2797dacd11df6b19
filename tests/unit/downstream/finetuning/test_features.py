"""Sequences, truncation, packing and order of fine-tuning examples."""

import itertools
import random

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer
from unit.downstream.finetuning.conftest import batcher_of, sentence
from unit.downstream.finetuning.test_task_kinds import swag_questions, tagged

from megabert.downstream.finetuning.batches import Sequences
from megabert.downstream.finetuning.task_kinds.sequence import LabelledText


def examples(rng, count=40):
    return [
        LabelledText(
            line=1,
            where=f"t:{i}",
            text=sentence(rng, length=rng.randint(1, 30)),
            pair=sentence(rng, length=rng.randint(1, 30)),
            label="0",
        )
        for i in range(count)
    ]


@pytest.fixture
def rng():
    return random.Random(5)


def test_pairs_are_encoded_and_cut_as_by_transformers(rng, make_kind, tokenizer_dir):
    kind = make_kind("rte", ("0", "1"), max_seq_length=24)
    columns = kind.encode(pairs := examples(rng), is_training=True).columns
    theirs = AutoTokenizer.from_pretrained(tokenizer_dir)
    for index, example in enumerate(pairs):
        expected = theirs(example.text, example.pair, truncation=True, max_length=24)
        start, stop = columns.token_starts[index : index + 2]
        assert columns.input_ids[start:stop].tolist() == expected["input_ids"]
        segments = (np.arange(stop - start) >= columns.segment_b_starts[index]).astype(int)
        assert segments.tolist() == expected["token_type_ids"]


LENGTHS = [(3, 100), (100, 3), (50, 50), (51, 50), (50, 51), (11, 11), (9, 10), (20, 1), (0, 30)]
KEPT = [(3, 18), (18, 3), (10, 11), (11, 10), (10, 11), (10, 11), (9, 10), (20, 1), (0, 21)]


@pytest.mark.parametrize(("lengths", "kept"), zip(LENGTHS, KEPT, strict=True))
def test_the_longer_text_loses_its_end_first(tokenizer, lengths, kept):
    (a, b), (kept_a, kept_b) = lengths, kept
    sequences = Sequences(tokenizer, 24)
    sequences.add(np.zeros(a, np.int32), np.ones(b, np.int32))
    assert sequences.segment_b_starts == [kept_a + 2]
    assert len(sequences.ids[0]) == kept_a + kept_b + 3


def test_an_epoch_holds_every_item_once_on_any_number_of_ranks(rng, make_kind):
    features = make_kind("rte", ("0", "1")).encode(examples(rng, 37), is_training=True)
    alone = [items_of(features, step, 1) for step in range(1, 6)]
    assert sorted(np.concatenate(alone).tolist()) == sorted([*range(37)])
    for step, items in enumerate(alone, 1):
        assert sorted(items_of(features, step, 3)) == sorted(items)
    assert items_of(features, 6, 1).tolist() != alone[0].tolist(), "the next epoch has another order"


def items_of(features, step, ranks) -> np.ndarray:
    parts, terms = [], set()
    for rank in range(ranks):
        batches, total = batcher_of(features, tokens=64, rank=rank, world_size=ranks).step(
            step, seed=1, global_batch_size=8
        )
        parts += [batch.items for batch in batches]
        terms.add(total)
    assert len(terms) == 1
    return np.concatenate(parts)


def test_dropout_keys_depend_on_the_step_and_not_on_ranks(rng, make_kind):
    features = make_kind("rte", ("0", "1")).encode(examples(rng), is_training=True)

    def keys(ranks: int, step: int = 2) -> dict[int, int]:
        key_of_item = {}
        for rank in range(ranks):
            for batch in batcher_of(features, rank=rank, world_size=ranks).step(step, seed=1, global_batch_size=16)[0]:
                key_of_item |= dict(zip(batch.items.tolist(), batch.inputs.instance_seeds_B.tolist(), strict=False))
        return key_of_item

    assert keys(1) == keys(2)
    assert len({*keys(1).values(), *keys(1, step=1).values()}) == 32, "each step has its own"


def test_sequences_of_a_choice_stay_together(make_kind, rng):
    features = make_kind("swag").encode(questions := swag_questions(rng, 10), is_training=True)
    for batch in batcher_of(features, tokens=128).step(1, seed=1, global_batch_size=10)[0]:
        assert batch.labels.tolist() == [questions[item].label for item in batch.items]
        for number, item in enumerate(batch.items):
            first, stop = batch.inputs.cu_seqlens[[4 * number, 4 * number + 4]].tolist()
            a, b = features.columns.token_starts[[4 * item, 4 * item + 4]]
            assert batch.inputs.input_ids_T[first:stop].tolist() == features.columns.input_ids[a:b].tolist()


def test_labels_of_tags_follow_their_items(make_kind, rng):
    kind = make_kind("tagging", ("O", "B-ANIMAL", "B-THING"))
    features = kind.encode(sentences := tagged(rng, 20), is_training=True)
    for batch in batcher_of(features, tokens=64).step(1, seed=1, global_batch_size=20)[0]:
        tags = [kind.labels[index] for index in batch.labels]
        assert tags == [tag for item in batch.items for tag in sentences[item].tags]
        starts = batch.inputs.cu_seqlens
        inside = [
            torch.count_nonzero((batch.label_positions_M >= a) & (batch.label_positions_M < b))
            for a, b in itertools.pairwise(starts)
        ]
        assert inside == [len(sentences[item].tags) for item in batch.items]
