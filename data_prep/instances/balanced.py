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

from data_prep.instances.google import SPECIALS
from data_prep.instances.pairs import LABELS, Bucket, PairOptions, Pairs
from megabert.masking.keyed_random import mix


def pair_balanced(bucket: Bucket, options: PairOptions, is_subword: NDArray[np.bool_]) -> Pairs:
    """Make the pairs of one pass over a bucket; documents of one sentence give none."""
    from data_prep.instances.balanced_kernels import walk_bucket

    documents = bucket.documents
    most = len(bucket.starts_S) - 1
    a_start, a_length, b_start, b_length = (np.empty(most, np.int64) for _ in range(4))
    label, key = np.empty(most, np.uint8), np.empty(most, np.uint64)
    made = walk_bucket(
        (bucket.starts_S, bucket.document_starts, bucket.document_keys, bucket.first_document),
        (np.asarray(documents.document_starts_D), np.asarray(documents.sentence_starts_S)),
        documents.bucket_tokens(bucket.number),
        is_subword,
        (
            options.key[()],
            mix(options.key, bucket.number, LABELS)[()],
            options.short_seq_prob,
            options.max_seq_length - SPECIALS,
            options.objective == "nsp",
        ),
        (a_start, a_length, b_start, b_length, label, key),
    )
    pairs = Pairs(a_start, a_length, b_start, b_length, label, key, options.objective == "sop")
    return pairs.take(slice(made))
