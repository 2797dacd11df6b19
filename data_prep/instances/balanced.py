"""Pairs by the paper's definition (Devlin et al. 2019, section 3.1) without the accidents of the original script.

What is different from google-research/bert's `create_pretraining_data.py`:

- The target length is drawn for each instance, not once for a document.
- Half of the labels are random, within each range of lengths, not in the mean over all.
- A random B is taken from the whole split, never from A's own document. It is chosen to be as long as the true B, so
  that the length does not tell the label.
- A is cut at its front and B at its back, so a true pair stays adjacent, and no side starts inside a word.

The same walk serves sentence order (Lan et al. 2020). There the two sides change places, and nothing but the text may
tell: each side is cut at its front or its back, by a coin, and half of the documents are walked from their end.
"""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from data_prep.instances.draws import LABELS
from data_prep.instances.pairs import SPECIALS_OF_A_PAIR, Bucket, PairOptions, Pairs
from megabert.randomness.keyed import mix

if TYPE_CHECKING:
    from data_prep.instances.balanced_loops import PairColumns

ROUNDS = 8
"""Sentences that are tried for a random B, at most. Each one more costs a random read of the index, and brings the
length of B nearer to the true one's."""
TOLERANCE_TOKENS = 2
"""A random B that differs by no more from the true one's length is taken at once."""


def pair_balanced(bucket: Bucket, options: PairOptions, is_subword: NDArray[np.bool_]) -> Pairs:
    """Make the pairs of one pass over a bucket; documents of one sentence give none."""
    from data_prep.instances.balanced_loops import PairColumns, WalkOptions, truncate_pairs, walk_bucket

    metadata, tokens = options.metadata, bucket.documents.bucket_tokens(bucket.number)
    # Plan all pairs with the B that follows their A. There are never more than sentences.
    room = len(bucket.document_S)
    numbers = [np.empty(room, np.int64) for _ in range(7)]
    columns = PairColumns._make([*numbers, np.empty(room, np.uint8), np.empty(room, np.uint64)])
    walk_options = WalkOptions(
        pass_key=options.key[()],
        label_key=mix(options.key, bucket.number, LABELS)[()],
        short_seq_prob=options.short_seq_prob,
        longest=metadata.max_seq_length - SPECIALS_OF_A_PAIR,
        has_random=metadata.objective == "nsp",
    )
    planned = walk_bucket(bucket.starts_S, bucket.document_starts, bucket.document_keys, walk_options, columns)
    pairs = PairColumns(*(column[:planned] for column in columns))

    # Replace B where the label says so, and only then cut: the cut depends on how long B is.
    if walk_options.has_random:
        _draw_seconds(bucket, np.flatnonzero(pairs.label == 1), pairs)
    truncate_pairs(pairs, walk_options, tokens, bucket.starts_S[0], is_subword)
    a_start, a_end, b_start, b_end, _, _, _, label, key = pairs
    is_b_first = metadata.objective == "sop"
    kept = np.flatnonzero(b_end > b_start)
    return Pairs(a_start, a_end - a_start, b_start, b_end - b_start, label, key, is_b_first).take(kept)


def _draw_seconds(bucket: Bucket, rows: NDArray[np.int64], pairs: "PairColumns") -> None:
    """Put a random B into some pairs: of a few drawn, the first that is as long as the true B, else the nearest."""
    from data_prep.instances.random_second_loops import (
        WORST,
        BestSeconds,
        SplitIndex,
        WantedSeconds,
        draw_candidates,
        try_candidates,
    )

    documents = bucket.documents
    a_start, a_end, b_start, b_end, target, own_first, own_end, _, keys = (column[rows] for column in pairs)
    # Where A and the true B reached the target, the random B must reach it, too: it is then cut to the same length.
    least = np.where(b_end - a_start >= target, target - (a_end - a_start), 0)
    wanted = WantedSeconds(keys, own_first + bucket.first_sentence, own_end - own_first, b_end - b_start, least)
    best = BestSeconds(b_start, b_end, np.full(len(rows), WORST, np.int64))
    index = SplitIndex(*documents.starts)
    left = np.arange(len(rows))
    for attempt in range(ROUNDS):
        candidates = draw_candidates(wanted, left, documents.num_sentences, attempt)
        for part in documents.by_window(candidates):
            try_candidates(index, left[part], candidates[part], wanted, best)
        left = left[best.badness[left] > TOLERANCE_TOKENS]
    pairs.b_start[rows], pairs.b_end[rows] = best.start, best.end
