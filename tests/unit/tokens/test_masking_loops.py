"""The compiled loops against plain Python that takes the same draws."""

import numpy as np
import pytest
from unit.tokens.test_masking import CLS, MASK, SEP, VOCAB, make_instances, places_of

from megabert.foundation.errors import ConfigError
from megabert.foundation.randomness.keyed import below, mix, stream, uniform
from megabert.foundation.randomness.keyed_loops import below as below_one
from megabert.foundation.randomness.keyed_loops import mix_2, mix_3
from megabert.foundation.randomness.keyed_loops import stream as stream_one
from megabert.foundation.randomness.keyed_loops import uniform as uniform_one
from megabert.tokens.masking import MaskingOptions, PieceTable, count_predictions, mask_instances
from megabert.tokens.masking_loops import MAX_SPAN_WORDS

IS_SUBWORD = np.random.default_rng(7).random(VOCAB) < 0.3
PIECES = PieceTable(cls_id=CLS, sep_id=SEP, mask_id=MASK, vocab_size=VOCAB, is_subword=IS_SUBWORD)


def test_draws_of_loops_are_those_of_numpy():
    words = np.random.default_rng(0).integers(0, 1 << 63, (300, 3)).astype(np.uint64)
    for first, second, third in words:
        assert mix_2(first, second) == mix(first, second)
        assert mix_3(first, second, third) == mix(first, second, third)
        key, bound = mix(first, second)[()], int(third % np.uint64(1 << 32)) + 1
        assert stream_one(key, 17) == stream(key, 17)
        assert uniform_one(key) == uniform(key)
        assert below_one(key, bound) == below(key, bound)
        assert 0 <= below_one(key, bound << 20) < bound << 20


def google_words(ids):
    """Candidate sets of an instance, as in create_masked_lm_predictions of google-research/bert."""
    words = []
    for position, token in enumerate(ids.tolist()):
        if token in (CLS, SEP):
            continue
        if words and IS_SUBWORD[token]:
            words[-1].append(position)
        else:
            words.append([position])
    return words


def in_random_order(words, key):
    """Fisher-Yates with the draws that the loop takes, over all words."""
    order = list(range(len(words)))
    for index in range(len(order)):
        other = index + int(below(stream(mix(key, 1), index), len(order) - index))
        order[index], order[other] = order[other], order[index]
    return [words[index] for index in order]


@pytest.mark.parametrize("mask_unit", ["token", "whole_word"])
def test_words_are_taken_in_order_while_they_fit(mask_unit):
    ids, offsets, keys = make_instances(np.random.default_rng(1).integers(4, 100, size=700))
    options = MaskingOptions(mask_unit=mask_unit)
    masked = mask_instances(ids, offsets, keys=keys, pieces=PIECES, options=options)
    counts = count_predictions(np.diff(offsets), options)
    for row in range(len(keys)):
        words = google_words(ids[offsets[row] : offsets[row + 1]])
        words = [[position] for word in words for position in word] if mask_unit == "token" else words
        wanted = []
        for word in in_random_order(words, keys[row]):
            if len(wanted) >= counts[row]:
                break
            if len(wanted) + len(word) <= counts[row]:
                wanted.extend(word)
        assert masked.positions_M[masked.offsets[row] : masked.offsets[row + 1]].tolist() == sorted(wanted)


def test_spans_are_the_next_words_while_they_fit():
    """Lengths are geometric (p = 0.2, at most ten); a chosen word, too long a one or a [SEP] ends a span early."""
    ids, offsets, keys = make_instances(np.random.default_rng(2).integers(20, 300, size=600))
    options = MaskingOptions(mask_unit="span", max_predictions_per_seq=99)
    masked = mask_instances(ids, offsets, keys=keys, pieces=PIECES, options=options)
    counts = count_predictions(np.diff(offsets), options)
    for row in range(len(keys)):
        words = google_words(ids[offsets[row] : offsets[row + 1]])
        numbers, chosen = in_random_order(range(len(words)), keys[row]), []
        for index, first in enumerate(numbers):
            draw = uniform(stream(mix(keys[row], 4), index)) * (1 - 0.8**MAX_SPAN_WORDS)
            length = min(1 + int(np.log(1 - draw) / np.log(0.8)), MAX_SPAN_WORDS)
            for number in range(first, min(first + length, len(words))):
                word = words[number]
                is_after_sep = number > first and word[0] != words[number - 1][-1] + 1
                if word[0] in chosen or len(chosen) + len(word) > counts[row] or is_after_sep:
                    break
                chosen += word
        assert masked.positions_M[masked.offsets[row] : masked.offsets[row + 1]].tolist() == sorted(chosen)


def test_a_span_is_replaced_as_one():
    ids, offsets, keys = make_instances([200] * 2000)
    masked = mask_instances(ids, offsets, keys=keys, pieces=PIECES, options=MaskingOptions(mask_unit="span"))
    places = places_of(masked, offsets)
    is_mask = masked.ids_T[places] == MASK
    is_neighbour = np.diff(places) == 1
    assert is_neighbour.mean() > 0.5
    assert (is_mask[1:] == is_mask[:-1])[is_neighbour].mean() > 0.995  # a random piece may be [MASK]


@pytest.mark.parametrize("mask_unit", ["whole_word", "span"])
def test_units_of_words_need_to_know_the_pieces(mask_unit):
    ids, offsets, keys = make_instances([20])
    pieces = PieceTable(cls_id=CLS, sep_id=SEP, mask_id=MASK, vocab_size=VOCAB)
    with pytest.raises(ConfigError, match="is_subword"):
        mask_instances(ids, offsets, keys=keys, pieces=pieces, options=MaskingOptions(mask_unit=mask_unit))
