"""The loops of `data_prep.instances.balanced` that find a random B for a pair.

A random B should be as long as the true one was, or its length would tell the label. Sentences have the lengths that
they have, so several random sentences of the split are tried for each pair: B would start there and take whole
sentences. The candidate whose B is nearest in length is kept.
"""

from typing import Any, NamedTuple

import numpy as np

from data_prep.instances.draws import CANDIDATE
from megabert.compiled import compiled, inlined
from megabert.randomness.keyed_loops import below, mix_3

TOO_SHORT = 1 << 32  # added to the badness: worse than any difference in length
WORST = 1 << 62  # badness of nothing


class SplitIndex(NamedTuple):
    """Where documents and sentences of a whole split start, each with its end."""

    document_starts: Any
    """First sentence of each document."""
    sentence_starts: Any
    """First token of each sentence."""


class WantedSeconds(NamedTuple):
    """What each pair needs of its random B, and which document it must not come from."""

    key: Any
    own_first: Any
    """First sentence of the pair's own document, over the split."""
    own_length: Any
    """Sentences of the own document."""
    length: Any
    """Tokens that B should have: as many as the true one."""
    least: Any
    """A shorter one is worse than any other."""


class BestSeconds(NamedTuple):
    """The best B of each pair so far, read and written."""

    start: Any
    """First token, over the split."""
    end: Any
    badness: Any
    """Difference of its length from the wanted one, and `TOO_SHORT`."""


@compiled
def draw_candidates(wanted, rows, sentences, attempt):
    """Draw a sentence for each row, uniform over all sentences of the split that are not of the row's own document.

    Args:
        wanted: `WantedSeconds`.
        rows: Which of them to draw for.
        sentences: Sentences of the split.
        attempt: Number of the try; each try has draws of its own.
    """
    keys, own_first, own_length = wanted.key, wanted.own_first, wanted.own_length
    candidates = np.empty(len(rows), np.int64)
    for index, row in enumerate(rows):
        # Numbers are drawn as if the own document were not there, and those behind it moved up by its length.
        sentence = below(mix_3(keys[row], CANDIDATE, attempt), sentences - own_length[row])
        candidates[index] = sentence + own_length[row] if sentence >= own_first[row] else sentence
    return candidates


@compiled
def try_candidates(index, rows, candidates, wanted, best):
    """Take the B that starts at a random sentence for the rows where it is nearer in length than the best so far.

    Args:
        index: `SplitIndex`.
        rows: Which rows to try.
        candidates: A sentence for each of these, ascending, so that the index is read from front to back.
        wanted: `WantedSeconds`.
        best: `BestSeconds`, changed.
    """
    document_starts, starts = index
    lengths, least = wanted.length, wanted.least
    begin, end, badness = best
    document = 0
    for number, row in enumerate(rows):
        sentence, length = candidates[number], lengths[row]
        document = _last_from(document_starts, sentence + 1, document)
        first, stop = document_starts[document], document_starts[document + 1]
        # Near the end of a document the start slides back until enough text follows, but not past the document's start.
        # Otherwise short remainders would be taken for want of text.
        if starts[sentence] > starts[stop] - length:
            sentence = min(sentence, max(_last_below(starts, starts[stop] - length + 1, first, stop), first))
        after = sentence + 1
        while after < stop and starts[after] < starts[sentence] + length:
            after += 1
        # Whole sentences: as many as reach the wanted length, or one less; where the document ends before that, a
        # sentence can also be left out at the front.
        later = min(sentence + 1, stop - 1) if after == stop else sentence
        for low, high in ((sentence, after), (sentence, max(after - 1, sentence + 1)), (later, after)):
            tokens = starts[high] - starts[low]
            difference = abs(tokens - length) + (TOO_SHORT if tokens < least[row] else 0)
            if difference < badness[row]:
                begin[row], end[row], badness[row] = starts[low], starts[high], difference


@inlined
def _last_from(ascending, value, start):
    """Return the last index whose element is below ``value``, as that at ``start`` is; quick if it is near.

    Steps double until they are too far (galloping search); the last step is then halved.
    """
    low, step = start, 1
    while low + step < len(ascending) and ascending[low + step] < value:
        low += step
        step <<= 1
    return _last_below(ascending, value, low, min(low + step, len(ascending)) - 1)


@inlined
def _last_below(ascending, value, low, high):
    """Return the last index from ``low`` to ``high`` whose element is below ``value``; ``low`` - 1 if none is."""
    while low <= high:
        middle = (low + high) >> 1
        if ascending[middle] < value:
            low = middle + 1
        else:
            high = middle - 1
    return high
