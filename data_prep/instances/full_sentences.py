"""Instances of one segment: whole sentences of one document up to the target (Liu et al. 2019, DOC-SENTENCES).

This pairing and `data_prep.instances.google` are written in array arithmetic, and share what is in this file: every
sentence is treated as if an instance began at it, and a walk over each document then takes the starts that are really
reached.
"""

import numpy as np
from numpy.typing import NDArray

from data_prep.instances.draws import SHORT, TARGET
from data_prep.instances.pairs import Bucket, Integers, PairOptions, Pairs
from megabert.randomness.keyed import below, mix, uniform

SPECIALS = 2
"""[CLS] text [SEP]."""


def full_sentences(bucket: Bucket, options: PairOptions) -> Pairs:
    """Make the instances of one pass over a bucket; a sentence longer than the target is cut at its end."""
    keys = bucket.keys_S(options)
    targets = draw_targets(keys, options, options.max_seq_length - SPECIALS)
    # From each sentence, as many sentences as fit into the target, one at least, and none of the next document.
    last = np.searchsorted(bucket.starts_S, bucket.starts_S[:-1] + targets, side="right") - 1 + bucket.first_sentence
    ends = np.minimum(np.maximum(last, bucket.sentences + 1), bucket.ends_S)
    chosen = walk(bucket, ends)
    start = bucket.starts_S[chosen]
    length = np.minimum(bucket.starts_S[ends[chosen] - bucket.first_sentence] - start, targets[chosen])
    nothing = np.zeros(len(chosen), np.int64)
    return Pairs(start, length, start + length, nothing, nothing.astype(np.uint8), keys[chosen])


def draw_targets(keys: NDArray[np.uint64], options: PairOptions, longest: int) -> Integers:
    """Draw the wanted number of tokens: ``longest``, or with ``short_seq_prob`` 2 to ``longest``, each as likely."""
    is_short = uniform(mix(keys, SHORT)) < options.short_seq_prob
    return np.where(is_short, 2 + below(mix(keys, TARGET), longest - 1), longest)


def walk(bucket: Bucket, following: Integers) -> Integers:
    """Return the sentences of the bucket (from 0) that instances start at.

    Args:
        bucket: Its documents are walked one by one.
        following: For each sentence, the one that the next instance would start at.
    """
    from data_prep.array_loops import follow

    return follow(following - bucket.first_sentence, bucket.ends_S - bucket.first_sentence)
