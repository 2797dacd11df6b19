"""Pairs by the paper's definition (Devlin et al. 2019, section 3.1) without the accidents of the original script.

The target length is drawn per instance; half of the labels are random, within each range of lengths; a random B
is taken from the whole split, never from A's document, and is chosen to be as long as the true B, so the label
does not show in the length; A is cut at its front and B at its back, so that a true pair stays adjacent; no side
starts inside a word. The same walk serves sentence order (Lan et al. 2020).
"""

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data_prep.instances.google import SPECIALS
from data_prep.instances.pairs import (
    CANDIDATE,
    LABELS,
    SPLIT_POINT,
    Bucket,
    Integers,
    PairOptions,
    Pairs,
    draw_targets,
    excess_by_side,
    first_reaching,
)
from megabert.masking.keyed_random import below, mix

LENGTH_RANGES = 8  # labels are even within each: a finer division leaves more odd ones over
LABEL_DELAY = 8  # instances; chains of put-backs at a document's end are rarely as long
ROUNDS = 8
TOLERANCE_TOKENS = 2
TOO_SHORT = 1 << 32  # worse than any length


def pair_balanced(bucket: Bucket, options: PairOptions, is_subword: NDArray[np.bool_]) -> Pairs:
    """Make the pairs of one pass over a bucket; documents of one sentence give none."""
    longest = options.max_seq_length - SPECIALS
    keys = bucket.keys_S(options)
    targets = draw_targets(keys, options, longest)
    ends = np.minimum(np.maximum(first_reaching(bucket, targets), bucket.sentences + 2), bucket.ends_S)
    count = np.maximum(ends - bucket.sentences, 2)
    a_ends = bucket.sentences + 1 + below(mix(keys, SPLIT_POINT), count - 1)
    starts = bucket.starts_S
    planned = np.minimum(starts[ends - bucket.first_sentence] - starts[:-1], targets)
    walk = _Walk(
        following=(ends, a_ends if options.objective == "nsp" else ends),
        length_range=np.minimum((planned - 1) * LENGTH_RANGES // longest, LENGTH_RANGES - 1),
        key=mix(options.key, bucket.number, LABELS),
    )
    chosen, labels = walk.run(bucket)
    keys, targets = keys[chosen], targets[chosen]
    a_start, middle = bucket.starts_S[chosen], bucket.starts_S[a_ends[chosen] - bucket.first_sentence]
    a_length = middle - a_start
    b_start, b_length = middle.copy(), bucket.starts_S[ends[chosen] - bucket.first_sentence] - middle
    if options.objective == "nsp":
        rows = np.flatnonzero(labels)
        is_cut = a_length + b_length >= targets
        wanted = _Wanted(b_length[rows], np.where(is_cut, targets - a_length, 0)[rows])
        document = bucket.sentence_document_S[chosen[rows]]
        b_start[rows], b_length[rows] = _random_second(bucket, document, keys[rows], wanted)
    from_a, from_b = excess_by_side(a_length, b_length, targets)
    a_start = word_start(bucket, a_start + from_a, middle, from_a > 0, is_subword)
    a_length, b_length = middle - a_start, b_length - from_b
    # A last word so long that it alone fills the instance: B is cut further, or the instance is left out.
    b_length = np.minimum(b_length, longest - a_length)
    kept = np.flatnonzero(b_length > 0)
    pairs = Pairs(a_start, a_length, b_start, b_length, labels, keys, options.objective == "sop")
    return pairs if len(kept) == len(pairs) else pairs.take(kept)


@dataclass(frozen=True)
class _Walk:
    """From instance to instance over each document; labels are dealt out on the way."""

    following: tuple[Integers, Integers]
    """Where the next instance starts after one that starts at each sentence, by its label."""
    length_range: Integers
    """Of the instance that starts at each sentence. Labels are even within each range, so length does not tell them."""
    key: NDArray[np.uint64]
    """Of the labels."""

    def run(self, bucket: Bucket) -> tuple[Integers, NDArray[np.uint8]]:
        """Return the sentences (from 0 in the bucket) that instances start at, and their labels."""
        steps = [_step_back(bucket, following).tolist() for following in self.following]
        ranges, ends = self.length_range.tolist(), (bucket.ends_S - bucket.first_sentence).tolist()
        dealer = EvenLabels(self.key, len(ends))
        reached: list[int] = []
        labels: list[int] = []
        sentence, last = 0, len(ends)
        while sentence < last:
            end = ends[sentence]
            if end - sentence == 1:
                sentence = end
            while sentence < end:
                label = dealer.deal(ranges[sentence])
                reached.append(sentence)
                labels.append(label)
                sentence = steps[label][sentence]
        return np.array(reached, dtype=np.int64), np.array(labels, dtype=np.uint8)


def _step_back(bucket: Bucket, following: Integers) -> Integers:
    """Move starts at the last sentence, which is no pair, back by one if that is progress, else end the document."""
    is_last = bucket.ends_S - following == 1
    back = np.where(following - 1 > bucket.sentences, following - 1, bucket.ends_S)
    return np.where(is_last, back, following) - bucket.first_sentence


class EvenLabels:
    """Deals coins whose opposite is dealt later to an instance of the same range of lengths, so labels come out even.

    Not at once: a random label puts B back, so the next instance of the document is often a little shorter. Were
    that one always dealt the opposite, length would tell the label (1.7 tokens at length 512 on short documents).
    """

    def __init__(self, key: NDArray[np.uint64], most: int) -> None:
        self._coins = iter((mix(key, np.arange(most)) & np.uint64(1)).tolist())
        self._owed: list[deque[tuple[int, int]]] = [deque() for _ in range(LENGTH_RANGES)]
        self._dealt = 0

    def deal(self, length_range: int) -> int:
        """Return the label of the next instance."""
        self._dealt += 1
        owed = self._owed[length_range]
        if owed and owed[0][0] <= self._dealt:
            return owed.popleft()[1]
        label = next(self._coins)
        owed.append((self._dealt + LABEL_DELAY, 1 - label))
        return label


@dataclass(frozen=True)
class _Wanted:
    """How long a random B should be."""

    length: Integers
    """Of the true B."""
    least: Integers
    """With fewer tokens the pair would miss the length that the true pair reaches."""

    def take(self, rows: Integers) -> "_Wanted":
        return _Wanted(self.length[rows], self.least[rows])

    def badness(self, found: Integers) -> Integers:
        """Return how far lengths are off."""
        return np.abs(found - self.length) + np.where(found < self.least, TOO_SHORT, 0)


def _random_second(
    bucket: Bucket, own: Integers, keys: NDArray[np.uint64], wanted: _Wanted
) -> tuple[Integers, Integers]:
    """Choose B among a few random places of other documents: the first that is as long as wanted, else the nearest."""
    start, length = np.zeros(len(own), np.int64), np.zeros(len(own), np.int64)
    best = np.full(len(own), np.iinfo(np.int64).max)
    rows = np.arange(len(own))
    for attempt in range(ROUNDS):
        if not len(rows):
            break
        place = _draw_sentence(bucket, own[rows], mix(keys[rows], CANDIDATE, attempt))
        found_start, found_length = _whole_sentences(bucket, place, wanted.take(rows))
        badness = wanted.take(rows).badness(found_length)
        better = np.flatnonzero(badness < best[rows])
        target = rows[better]
        start[target], length[target], best[target] = found_start[better], found_length[better], badness[better]
        rows = rows[best[rows] > TOLERANCE_TOKENS]
    return start, length


def _draw_sentence(bucket: Bucket, own: Integers, keys: NDArray[np.uint64]) -> Integers:
    """Draw a sentence of the split, uniform over all that are not of the own document."""
    documents = bucket.documents
    first, end = documents.document_starts_D[own], documents.document_starts_D[own + 1]
    place = below(keys, documents.num_sentences - (end - first))
    return place + np.where(place >= first, end - first, 0)


def _whole_sentences(bucket: Bucket, place: Integers, wanted: _Wanted) -> tuple[Integers, Integers]:
    """Return start and length of whole sentences near ``place``, about as long as wanted.

    Near the end of a document the start slides back, so that short rests are not taken for want of text.
    """
    documents, starts = bucket.documents, bucket.documents.sentence_starts_S
    document = documents.document_of_sentence(place)
    first, end = documents.document_starts_D[document], documents.document_starts_D[document + 1]
    latest = np.maximum(np.searchsorted(starts, starts[end] - wanted.length, side="right") - 1, first)
    place = np.minimum(place, latest)
    up = np.minimum(np.searchsorted(starts, starts[place] + wanted.length), end)
    down = np.maximum(up - 1, place + 1)
    # At a document's end one sentence can also be left out at the front.
    later = np.where(up == end, np.minimum(place + 1, end - 1), place)
    begins = np.stack([starts[place], starts[place], starts[later]])
    lengths = np.stack([starts[up], starts[down], starts[up]]) - begins
    best = np.argmin(np.stack([wanted.badness(length) for length in lengths]), axis=0)
    rows = np.arange(len(place))
    return begins[best, rows], lengths[best, rows]


def word_start(
    bucket: Bucket, position: Integers, end: Integers, is_moved: NDArray[np.bool_], is_subword: NDArray[np.bool_]
) -> Integers:
    """Move positions (tokens over the split) on to the next start of a word; back where none is before ``end``."""
    offset = int(bucket.documents.bucket_starts[bucket.number, 2])
    tokens = bucket.documents.bucket_tokens(bucket.number)
    word_starts = np.flatnonzero(~is_subword[tokens]) + offset
    rank = np.searchsorted(word_starts, position)
    onward = word_starts[np.minimum(rank, len(word_starts) - 1)]
    is_onward = (rank < len(word_starts)) & (onward < end)
    backward = word_starts[np.maximum(rank - 1, 0)]
    return np.where(is_moved, np.where(is_onward, onward, backward), position)
