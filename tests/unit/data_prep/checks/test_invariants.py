"""The loop over a batch finds exactly the rows that break a rule, read token by token."""

from types import SimpleNamespace

import numpy as np
import pytest
from support.made_shards import SPECIAL_IDS, make_metadata

from data_prep.checks.invariants import RULES, Rules
from data_prep.documents.arrow_files import offsets_of
from megabert.tokens.masking import MaskingOptions, PieceTable, mask_instances
from megabert.tokens.shards.columns import FlatInstances
from megabert.tokens.shards.shard_file import find_nonsense

VOCAB_SIZE, FIRST_SUBWORD = 40, 25
IS_SUBWORD = np.arange(VOCAB_SIZE) >= FIRST_SUBWORD
FORMS = [
    {"objective": "nsp", "mask_unit": "token"},
    {"objective": "nsp", "mask_unit": "whole_word"},
    {"objective": "sop", "mask_unit": "span", "max_seq_length": 40},
    {"objective": "nsp", "pairing": "google"},
    {"objective": "none", "mask_unit": "whole_word"},
    {"objective": "none", "masking": "dynamic"},
    {"objective": "nsp", "vocab_size": 70_000},
]


def metadata_of(**changes):
    sizes = {"max_seq_length": 24, "max_predictions_per_seq": 4, "vocab_size": VOCAB_SIZE}
    return make_metadata(**{**sizes, **changes})


def make_rules(metadata):
    is_subword = np.zeros(metadata.vocab_size, bool)
    is_subword[:VOCAB_SIZE] = IS_SUBWORD
    return Rules.of(metadata, SimpleNamespace(is_subword=is_subword, kind=SimpleNamespace(has_short_words=True)))


@pytest.mark.parametrize(
    ("objective", "holds_ids", "has_short_words", "whole"),
    [
        ("nsp", False, True, True),
        ("nsp", True, True, False),
        ("nsp", False, False, False),
        ("none", False, True, False),
    ],
)
def test_lists_of_ids_and_long_words_may_be_cut_inside_a_word(objective, holds_ids, has_short_words, whole):
    tokenizer = SimpleNamespace(is_subword=IS_SUBWORD, kind=SimpleNamespace(has_short_words=has_short_words))
    assert Rules.of(metadata_of(objective=objective), tokenizer, holds_ids=holds_ids).has_whole_sides is whole


def make_side(rng, length):
    """Return text that starts with a word and holds pieces that continue one."""
    ids = rng.integers(5, VOCAB_SIZE, length)
    ids[0] = rng.integers(5, FIRST_SUBWORD)
    return ids


def make_batch(rng, metadata, rows=3):
    """Return sound instances."""
    cls, sep = SPECIAL_IDS["cls"], SPECIAL_IDS["sep"]
    ids, starts = [], []
    for _ in range(rows):
        a, b = make_side(rng, rng.integers(1, 9)), make_side(rng, rng.integers(1, 9))
        row = [cls, *a, sep, *b, sep] if metadata.objective != "none" else [cls, *a, sep]
        ids.append(np.array(row))
        starts.append(len(a) + 2)
    offsets = offsets_of(np.array([len(row) for row in ids]))
    ids_T = np.concatenate(ids).astype(np.uint16 if metadata.vocab_size < 1 << 16 else np.uint32)
    label = rng.integers(0, 1 if metadata.objective == "none" else 2, rows).astype(np.uint8)
    none, ends = np.zeros(0, np.uint16), np.zeros(rows + 1, np.int64)
    batch = FlatInstances(
        offsets, ids_T, np.array(starts, np.uint16), ends, none, ends, ids_T[:0], label, np.arange(rows)
    )
    if metadata.masking == "dynamic":
        return batch
    pieces = PieceTable(
        cls_id=cls, sep_id=sep, mask_id=SPECIAL_IDS["mask"], vocab_size=VOCAB_SIZE, is_subword=IS_SUBWORD
    )
    options = MaskingOptions(mask_unit=metadata.mask_unit, max_predictions_per_seq=metadata.max_predictions_per_seq)
    keys = rng.integers(0, 1 << 62, rows).astype(np.uint64)
    masked = mask_instances(batch.input_ids, offsets, keys=keys, pieces=pieces, options=options)
    return batch._replace(
        input_ids=masked.ids_T, masked_positions=masked.positions_M, masked_ids=masked.original_ids_M,
        masked_starts=masked.offsets, masked_id_starts=masked.offsets.copy(),
    )  # fmt: skip


def damage(rng, batch):
    """Change one to three numbers of any column."""
    columns = [column.copy() for column in batch]
    for _ in range(rng.integers(1, 4)):
        column = columns[rng.integers(len(columns) - 1)]  # the last one is no column of the file
        if not len(column):
            continue
        place = rng.integers(len(column))
        if column.dtype == np.int64:  # offsets stay within the values: Arrow's own business
            column[1:-1] += rng.integers(-1, 2, len(column) - 2)
            np.clip(column, 0, column[-1], out=column)
        elif rng.random() < 0.5:
            column[place] = rng.choice(column)
        else:
            column[place] = rng.integers(0, 8) if rng.random() < 0.8 else rng.integers(0, VOCAB_SIZE + 2)
    return FlatInstances(*columns)


def broken_rule(metadata, row):
    """Return the numbers of the rules that a row breaks, read token by token."""
    ids, b_start = row.input_ids.tolist(), int(row.segment_b_starts[0])
    predicted = dict(zip(row.masked_positions.tolist(), row.masked_ids.tolist(), strict=True))
    frame = {0: 2, b_start - 1: 3, len(ids) - 1: 3}
    text = [predicted.get(place, token) for place, token in enumerate(ids)]
    share = min(4, max(1, round(0.15 * len(ids))), len(ids) - len(frame)) if metadata.masking == "static" else 0
    has_words = metadata.mask_unit != "token"
    broken = set()
    if frame.keys() & predicted.keys():
        broken.add(0)
    if len(predicted) > share or (len(predicted) < share and not has_words):
        broken.add(1)
    if any((token != frame[place]) if place in frame else token in (0, 2, 3, 4) for place, token in enumerate(text)):
        broken.add(2)
    for place in {*range(1, len(ids) - 1)} - frame.keys():
        is_first = place - 1 in frame
        if text[place] >= FIRST_SUBWORD and is_first and (metadata.objective, metadata.pairing) != ("nsp", "google"):
            broken.add(4)
        if text[place] >= FIRST_SUBWORD and has_words and not is_first:
            broken |= {3} if (place in predicted) != (place - 1 in predicted) else set()
    return broken - {4} if metadata.objective == "none" else broken


@pytest.mark.parametrize("form", FORMS, ids=lambda form: " ".join(map(str, form.values())))
def test_loop_finds_a_rule_that_a_row_breaks(form):
    rng = np.random.default_rng(7)
    metadata = metadata_of(**form)
    rules, found = make_rules(metadata), set()
    for _ in range(1500):
        batch = make_batch(rng, metadata, rows=1)
        assert rules.broken(batch) == {}
        damaged = damage(rng, batch)
        if find_nonsense(damaged, metadata) is None:
            named = [RULES.index(rule) for rule in rules.broken(damaged)]
            expected = broken_rule(metadata, damaged)
            assert bool(named) == bool(expected), (damaged, named, expected)
            assert {*named} <= expected | {2}, (damaged, named, expected)
            found |= {*named}
    assert len(found) >= (1 if metadata.masking == "dynamic" else 2)


def test_special_token_in_the_text_is_not_made_up_for_by_a_predicted_border():
    metadata = metadata_of(objective="nsp")
    rules = make_rules(metadata)
    ids = np.array([2, 5, 6, 7, 3, 8, 9, 10, 3], np.uint16)
    ends = np.array([0, 1])
    batch = FlatInstances(np.array([0, len(ids)]), ids, np.array([5], np.uint16), ends, np.array([2], np.uint16), ends,
                          np.array([6], np.uint16), np.zeros(1, np.uint8), np.arange(1))  # fmt: skip
    assert rules.broken(batch) == {}
    stray = batch._replace(input_ids=np.array([2, 5, 6, 4, 3, 8, 9, 10, 3], np.uint16))
    assert [*rules.broken(stray)] == [RULES[2]]
    border = stray._replace(masked_positions=np.array([4], np.uint16))
    assert [*rules.broken(border)] == [RULES[0]]
