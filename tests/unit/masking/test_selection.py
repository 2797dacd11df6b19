import numpy as np
import pytest

from megabert.errors import ConfigError
from megabert.masking.keyed_random import mix, stream
from megabert.masking.selection import MAX_SPAN_WORDS, Candidates, select_spans, select_tokens, select_whole_words


def make_block(rows, longest, subword_share=None):
    generator = np.random.default_rng(2)
    lengths = generator.integers(0, longest, size=rows)
    row = np.repeat(np.arange(rows), lengths)
    is_candidate = generator.random(len(row)) < 0.9
    candidates = np.bincount(row[is_candidate], minlength=rows)
    return Candidates(
        row_T=row,
        position_T=np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths),
        is_candidate_T=is_candidate,
        is_subword_T=None if subword_share is None else generator.random(len(row)) < subword_share,
        candidates_R=candidates,
        counts_R=np.minimum(generator.integers(0, 40, size=rows), candidates),
        keys_R=mix(5, np.arange(rows)),
    )


def test_tokens_are_the_first_in_random_order():
    block = make_block(4000, 200)
    chosen = select_tokens(block)
    random = stream(block.keys_R[block.row_T], block.position_T)
    starts = np.searchsorted(block.row_T, np.arange(4001))
    for index in range(4000):
        tokens = np.arange(starts[index], starts[index + 1])
        tokens = tokens[block.is_candidate_T[tokens]]
        wanted = tokens[np.argsort(random[tokens])][: block.counts_R[index]]
        found = np.flatnonzero(chosen[starts[index] : starts[index + 1]]) + starts[index]
        assert found.tolist() == sorted(wanted.tolist())


def google_words(block, tokens):
    """Candidate sets of one row, as in create_masked_lm_predictions of google-research/bert."""
    words = []
    for token in tokens:
        if not block.is_candidate_T[token]:
            continue
        if words and block.is_subword_T[token]:
            words[-1].append(token)
        else:
            words.append([token])
    return words


def test_whole_words_follow_google_for_the_same_order():
    block = make_block(1000, 100, subword_share=0.3)
    chosen = select_whole_words(block)
    starts = np.searchsorted(block.row_T, np.arange(1001))
    for index in range(1000):
        words = google_words(block, range(starts[index], starts[index + 1]))
        words.sort(key=lambda word: int(stream(block.keys_R[index], block.position_T[word[0]])))
        wanted = []
        for word in words:
            if len(wanted) >= block.counts_R[index]:
                break
            if len(wanted) + len(word) <= block.counts_R[index]:
                wanted.extend(word)
        found = np.flatnonzero(chosen[starts[index] : starts[index + 1]]) + starts[index]
        assert found.tolist() == sorted(wanted)


def test_whole_words_need_to_know_the_pieces():
    with pytest.raises(ConfigError, match="is_subword"):
        select_whole_words(make_block(3, 20))


def runs_of(chosen, words):
    """Numbers of words in the maximal runs of chosen neighbours."""
    lengths, current, last = [], 0, None
    for word in words:
        if chosen[word[0]] and last is not None and word[0] == last + 1 and current:
            current += 1
        else:
            lengths += [current] if current else []
            current = int(chosen[word[0]])
        last = word[-1]
    return lengths + ([current] if current else [])


def test_spans_are_whole_words_within_the_wanted_number():
    block = make_block(600, 200, subword_share=0.3)
    chosen = select_spans(block)
    starts = np.searchsorted(block.row_T, np.arange(601))
    lengths = []
    for index in range(600):
        words = google_words(block, range(starts[index], starts[index + 1]))
        assert all(len({bool(chosen[token]) for token in word}) == 1 for word in words)
        found = int(chosen[starts[index] : starts[index + 1]].sum())
        assert found <= block.counts_R[index]
        if len(words) > 60 and block.counts_R[index] > 20:
            assert found == block.counts_R[index] or min(map(len, words)) > block.counts_R[index] - found
            lengths += runs_of(chosen, words)
    assert 1.7 < np.mean(lengths) < MAX_SPAN_WORDS
    assert max(lengths) > 5


def test_spans_of_a_row_do_not_depend_on_other_rows():
    block = make_block(50, 100, subword_share=0.3)
    whole = select_spans(block)
    for index in (0, 17, 49):
        own = block.row_T == index
        alone = Candidates(
            row_T=np.zeros(own.sum(), np.int64),
            position_T=block.position_T[own],
            is_candidate_T=block.is_candidate_T[own],
            is_subword_T=block.is_subword_T[own],
            candidates_R=block.candidates_R[index : index + 1],
            counts_R=block.counts_R[index : index + 1],
            keys_R=block.keys_R[index : index + 1],
        )
        assert np.array_equal(select_spans(alone), whole[own])


def test_spans_need_to_know_the_pieces():
    with pytest.raises(ConfigError, match="is_subword"):
        select_spans(make_block(3, 20))
