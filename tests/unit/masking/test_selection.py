import numpy as np
import pytest

from megabert.errors import ConfigError
from megabert.masking.keyed_random import mix, stream
from megabert.masking.selection import Candidates, select_tokens, select_whole_words


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
