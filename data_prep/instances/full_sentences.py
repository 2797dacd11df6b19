"""Instances of one segment: whole sentences of one document up to the target (Liu et al. 2019, DOC-SENTENCES)."""

import numpy as np

from data_prep.instances.pairs import Bucket, PairOptions, Pairs, draw_targets, walk

SPECIALS = 2


def full_sentences(bucket: Bucket, options: PairOptions) -> Pairs:
    """Make the instances of one pass over a bucket; a sentence longer than the target is cut at its end."""
    keys = bucket.keys_S(options)
    targets = draw_targets(keys, options, options.max_seq_length - SPECIALS)
    last = np.searchsorted(bucket.starts_S, bucket.starts_S[:-1] + targets, side="right") - 1 + bucket.first_sentence
    ends = np.minimum(np.maximum(last, bucket.sentences + 1), bucket.ends_S)
    chosen = walk(bucket, ends)
    start = bucket.starts_S[chosen]
    length = np.minimum(bucket.starts_S[ends[chosen] - bucket.first_sentence] - start, targets[chosen])
    nothing = np.zeros(len(chosen), np.int64)
    return Pairs(start, length, start + length, nothing, nothing.astype(np.uint8), keys[chosen])
