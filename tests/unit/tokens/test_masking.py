import itertools

import numpy as np
import pytest

from megabert.foundation.errors import ConfigError, DataError
from megabert.foundation.randomness.keyed import mix
from megabert.tokens.masking import MaskingOptions, PieceTable, count_predictions, mask_instances, rarity_weights

CLS, SEP, MASK, VOCAB = 2, 3, 4, 1000
PIECES = PieceTable(cls_id=CLS, sep_id=SEP, mask_id=MASK, vocab_size=VOCAB)


def make_instances(lengths, seed=0, dtype=np.int32):
    """Instances of the given lengths: [CLS] A [SEP] B [SEP] with random pieces, [UNK] (1) among them."""
    generator = np.random.default_rng(seed)
    rows = []
    for length in lengths:
        body = generator.integers(5, VOCAB, size=length - 3)
        body[generator.random(length - 3) < 0.02] = 1
        middle = int(generator.integers(0, length - 2))
        rows.append(np.concatenate([[CLS], body[:middle], [SEP], body[middle:], [SEP]]))
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return np.concatenate(rows).astype(dtype), offsets, mix(17, np.arange(len(lengths)))


def places_of(masked, offsets):
    """Where the predictions of all instances are in the flat ids."""
    return masked.positions_M + np.repeat(offsets[:-1], np.diff(masked.offsets))


@pytest.fixture(scope="module")
def many():
    ids, offsets, keys = make_instances(np.random.default_rng(1).integers(4, 129, size=9000))
    masked = mask_instances(ids, offsets, keys=keys, pieces=PIECES)
    return ids, masked, places_of(masked, offsets)


def test_counts_follow_google_with_halves_rounded_to_even():
    lengths = np.arange(3, 513)
    for cap in (20, 80):
        counts = count_predictions(lengths, MaskingOptions(max_predictions_per_seq=cap))
        wanted = [min(cap, max(1, int(round(length * 0.15)))) for length in lengths.tolist()]  # noqa: RUF046
        assert counts.tolist() == wanted
    uncapped = MaskingOptions(max_predictions_per_seq=99)
    assert count_predictions(np.array([30, 70, 110, 128, 512]), uncapped).tolist() == [4, 10, 16, 19, 77]


def test_special_positions_are_never_predicted_and_originals_are_kept(many):
    ids, masked, places = many
    assert not np.isin(masked.original_ids_M, [CLS, SEP]).any()
    assert (masked.original_ids_M == ids[places]).all()
    assert (np.delete(masked.ids_T, places) == np.delete(ids, places)).all()


def test_predicted_tokens_become_mask_random_or_stay_in_80_10_10(many):
    _, masked, places = many
    after = masked.ids_T[places]
    is_mask, is_kept = after == MASK, after == masked.original_ids_M
    assert is_mask.mean() == pytest.approx(0.8001, abs=0.005)
    assert is_kept.mean() == pytest.approx(0.1001, abs=0.004)
    replaced = after[~is_mask & ~is_kept]
    assert len(replaced) / len(after) == pytest.approx(0.0998, abs=0.004)
    # Replacements come from the whole vocabulary: special pieces too, evenly.
    counts = np.bincount(replaced, minlength=VOCAB)
    assert replaced.max() > VOCAB - 10
    assert counts[[0, 1, CLS, SEP]].sum() > 0
    assert abs(np.histogram(replaced, bins=10, range=(0, VOCAB))[0] / (len(replaced) / 10) - 1).max() < 0.15


def test_result_depends_on_the_key_not_on_the_batch():
    ids, offsets, keys = make_instances(np.random.default_rng(5).integers(4, 65, size=5000))
    whole = mask_instances(ids, offsets, keys=keys, pieces=PIECES)
    for instance in (0, 1, 4095, 4096, 4999):  # both sides of a block's border
        part = slice(offsets[instance], offsets[instance + 1])
        alone = mask_instances(
            ids[part], np.array([0, len(ids[part])]), keys=keys[instance : instance + 1], pieces=PIECES
        )
        predictions = slice(whole.offsets[instance], whole.offsets[instance + 1])
        assert (alone.ids_T == whole.ids_T[part]).all()
        assert (alone.positions_M == whole.positions_M[predictions]).all()
        assert (alone.original_ids_M == whole.original_ids_M[predictions]).all()


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.int32, np.int64])
def test_dtype_of_ids_is_kept(dtype):
    ids, offsets, keys = make_instances([10, 12], dtype=dtype)
    masked = mask_instances(ids, offsets, keys=keys, pieces=PIECES)
    assert masked.ids_T.dtype == masked.original_ids_M.dtype == dtype


def test_instances_without_candidates_get_no_predictions():
    ids = np.array([CLS, SEP, SEP, CLS, 9, SEP, SEP, CLS, SEP, SEP], dtype=np.uint16)
    masked = mask_instances(ids, np.array([0, 3, 7, 7, 10]), keys=mix(np.arange(4)), pieces=PIECES)
    assert masked.offsets.tolist() == [0, 0, 1, 1, 1]
    assert masked.positions_M.tolist() == [1]
    none = mask_instances(ids[:0], np.zeros(1, np.int64), keys=np.zeros(0, np.uint64), pieces=PIECES)
    assert none.offsets.tolist() == [0]


def test_special_pieces_anywhere_are_passed_over():
    ids, offsets, keys = make_instances([90] * 400)
    ids[np.random.default_rng(8).random(len(ids)) < 0.5] = SEP
    masked = mask_instances(ids, offsets, keys=keys, pieces=PIECES)
    places = places_of(masked, offsets)
    assert len(np.unique(places)) == len(places) == 400 * 14
    assert not np.isin(ids[places], [CLS, SEP]).any()


def test_masking_in_place_gives_the_same():
    ids, offsets, keys = make_instances([60, 4, 33])
    kept = ids.copy()
    copied = mask_instances(ids, offsets, keys=keys, pieces=PIECES)
    assert (ids == kept).all()
    masked = mask_instances(ids, offsets, keys=keys, pieces=PIECES, is_in_place=True)
    assert masked.ids_T is ids
    assert (ids == copied.ids_T).all()
    assert (masked.original_ids_M == copied.original_ids_M).all()


@pytest.mark.parametrize(
    ("field", "value"), [("mask_unit", "letters"), ("masked_lm_prob", 0.0), ("max_predictions_per_seq", 0)]
)
def test_impossible_options_are_refused(field, value):
    with pytest.raises(ConfigError, match=field):
        MaskingOptions(**{field: value})


def inclusion(weights, wanted):
    """How likely each unit is among the first ones, drawn one after the other by weight: all orders added up."""
    chances = np.zeros(len(weights))
    for order in itertools.permutations(range(len(weights)), wanted):
        left, chance = sum(weights), 1.0
        for unit in order:
            chance *= weights[unit] / left
            left -= weights[unit]
        chances[list(order)] += chance
    return chances


@pytest.mark.parametrize("unit", ["token", "whole_word"])
def test_rare_pieces_are_chosen_as_often_as_draws_by_weight_choose_them(unit):
    counts = np.full(VOCAB, 10)
    counts[[10, 11, 12, 13]] = 1000, 40, 3, 90  # 3 counts as 10
    weights = rarity_weights(counts, 0.5)
    assert weights[[10, 11, 12]] == pytest.approx([1000**-0.5, 40**-0.5, 10**-0.5])
    # Words of one piece each, but for the last two pieces of the second case, which are one word of two.
    is_subword = np.arange(VOCAB) == 13
    ids, rows = np.array([CLS, 10, 11, SEP, 12, 14, 13, SEP], np.int32), 20_000
    pieces = PIECES._replace(weights=weights, is_subword=is_subword if unit == "whole_word" else None)
    options = MaskingOptions(mask_unit=unit, masked_lm_prob=0.25, rarity=0.5)
    masked = mask_instances(
        np.tile(ids, rows), np.arange(rows + 1) * len(ids), keys=mix(3, np.arange(rows)), pieces=pieces, options=options
    )
    share = np.bincount(masked.positions_M, minlength=len(ids)) / rows
    own = weights[[10, 11, 12, 14, 13]]
    if unit == "token":
        assert (np.diff(masked.offsets) == 2).all()
        expected = inclusion(own, 2)
    else:
        # Two tokens are wanted: the word of two first, or two of the others, which leave no room for it.
        words = [*own[:3], own[3:].mean()]
        alone = words[3] / sum(words)
        expected = np.zeros(5)
        expected[3:] = alone
        # The word of two, if it comes between two others, is passed over.
        for first, second in itertools.permutations(range(3), 2):
            chance = words[first] / sum(words) * words[second] / (sum(words[:3]) - words[first])
            expected[[first, second]] += chance
    assert share[[1, 2, 4, 5, 6]] == pytest.approx(expected, abs=4 * 0.5 / rows**0.5)
    assert not share[[0, 3, 7]].any()


def test_weights_without_rarity_and_too_few_of_them_are_refused():
    ids, offsets, keys = make_instances([20] * 3)
    weights = np.ones(VOCAB)
    for pieces, options in ((PIECES._replace(weights=weights), None), (PIECES, MaskingOptions(rarity=0.5))):
        with pytest.raises(ConfigError, match="go together"):
            mask_instances(ids, offsets, keys=keys, pieces=pieces, options=options)
    few = PIECES._replace(weights=weights[:7])
    with pytest.raises(DataError, match="has 7 pieces"):
        mask_instances(ids, offsets, keys=keys, pieces=few, options=MaskingOptions(rarity=0.5))
