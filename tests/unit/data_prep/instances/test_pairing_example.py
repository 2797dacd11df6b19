"""The table at the head of `balanced_loops` is the result of pairing the two documents that it describes."""

from dataclasses import replace

import numpy as np
from unit.data_prep.conftest import pair_options, whole_words, write_split

from data_prep.instances import balanced, balanced_loops
from data_prep.instances.pairs import DocumentBucket

SENTENCES = {"p": [4, 3, 6, 5, 2, 4], "q": [5, 4, 4, 6, 3, 2]}
TARGET, SPECIALS, SEED = 12, 3, 61


def names_of(start, end):
    """Name the sentences that a range of tokens touches, p1 to p6 or q1 to q6."""
    names = [f"{document}{number}" for document in SENTENCES for number in range(1, 7)]
    bounds = np.concatenate([[0], np.cumsum([size for sizes in SENTENCES.values() for size in sizes])])
    touched = [name for name, low, high in zip(names, bounds, bounds[1:], strict=False) if start < high and end > low]
    return " ".join(touched)


def test_pairs_of_the_example_are_as_the_table_says(tmp_path):
    bucket = DocumentBucket(write_split(tmp_path, [list(SENTENCES.values())]), 0)
    options = replace(pair_options(TARGET + SPECIALS, seed=SEED), short_seq_prob=0)
    planned = balanced._plan(bucket, options, whole_words())
    pairs = balanced.pair_balanced(bucket, options, whole_words())
    table = [" ".join(line.split(":")[0].split()) for line in (balanced_loops.__doc__ or "").splitlines()]
    for row in range(4):
        texts = (
            names_of(planned.a_start[row], planned.a_end[row]),
            names_of(planned.b_start[row], planned.b_end[row]),
            str(pairs.label[row]),
            names_of(pairs.b_start[row], pairs.b_end[row]),
            f"{pairs.a_length[row]} + {pairs.b_length[row]}",
        )
        assert " ".join(texts) in table
    # The tokens that one of them lost; each begins where the one before it ended.
    assert pairs.b_end[1] == planned.b_end[2] - 3
    assert np.array_equal(pairs.a_start, planned.a_start)
    assert (planned.a_start[1:] == planned.b_end[:-1]).all()
    assert planned.b_end[0] == sum(SENTENCES["p"][:3]) - 1
