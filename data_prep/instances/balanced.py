"""Pairs by the paper's definition (Devlin et al. 2019, section 3.1) without the accidents of the original script.

The target length is drawn per instance; half of the labels are random, within each range of lengths; a random B
is taken from the whole split, never from A's document, and is chosen to be as long as the true B, so the label
does not show in the length; A is cut at its front and B at its back, so that a true pair stays adjacent; no side
starts inside a word.

The same walk serves sentence order (Lan et al. 2020), where the two sides change places and nothing but the text may
tell: each side is cut at its front or its back, by a coin, and half of the documents are walked from their end.
"""

import numpy as np
from numpy.typing import NDArray

from data_prep.instances.pairs import LABELS, SPECIALS_OF_A_PAIR, Bucket, PairOptions, Pairs
from megabert.randomness.keyed import mix

ROUNDS = 8
TOLERANCE_TOKENS = 2


def pair_balanced(bucket: Bucket, options: PairOptions, is_subword: NDArray[np.bool_]) -> Pairs:
    """Make the pairs of one pass over a bucket; documents of one sentence give none."""
    from data_prep.instances.balanced_loops import truncate_pairs, walk_bucket

    most, longest = len(bucket.starts_S) - 1, options.max_seq_length - SPECIALS_OF_A_PAIR
    has_random = options.objective == "nsp"
    drafts = np.empty((7, most), np.int64)
    label, key = np.empty(most, np.uint8), np.empty(most, np.uint64)
    planned = walk_bucket(
        (bucket.starts_S, bucket.document_starts, bucket.document_keys),
        (
            options.key[()],
            mix(options.key, bucket.number, LABELS)[()],
            options.short_seq_prob,
            longest,
            has_random,
        ),
        (*drafts, label, key),
    )
    drafts, label, key = drafts[:, :planned], label[:planned], key[:planned]
    if has_random:
        _draw_seconds(bucket, np.flatnonzero(label == 1), drafts, key)
    a_start, a_length, b_start, b_length, chosen = (np.empty(planned, np.int64) for _ in range(5))
    text = bucket.documents.bucket_tokens(bucket.number), bucket.starts_S[0], is_subword
    out = a_start, a_length, b_start, b_length, chosen
    made = slice(truncate_pairs((*drafts[:5], label, key), (longest, has_random), text, out))
    return Pairs(
        a_start[made],
        a_length[made],
        b_start[made],
        b_length[made],
        label[chosen[made]],
        key[chosen[made]],
        options.objective == "sop",
    )


def _draw_seconds(bucket: Bucket, rows: NDArray[np.int64], drafts: NDArray[np.int64], key: NDArray[np.uint64]) -> None:
    """Put a random B into some pairs: of a few places the first where it is as long as the true one, else the nearest.

    A place is a sentence of the split, uniform over all that are not of the own document.
    """
    from data_prep.instances.balanced_loops import draw_places, try_places

    documents = bucket.documents
    a_start, a_end, b_start, b_end, target, own_first, own_end = drafts[:, rows]
    keys, own_first, own_length = key[rows], own_first + bucket.first_sentence, own_end - own_first
    wanted = b_end - b_start
    least = np.where(b_end - a_start >= target, target - (a_end - a_start), 0)
    badness = np.full(len(rows), 1 << 62, np.int64)
    left = np.arange(len(rows))
    for attempt in range(ROUNDS):
        places = draw_places(keys, own_first, own_length, left, documents.num_sentences, attempt)
        for some in documents.by_place(places):
            try_places(documents.starts, left[some], places[some], wanted, least, (b_start, b_end, badness))
        left = left[badness[left] > TOLERANCE_TOKENS]
    drafts[2, rows], drafts[3, rows] = b_start, b_end
