"""The loops of `data_prep.instances.balanced` over one bucket."""

# S sentences of the bucket, as numbers from 0; "split" counts over the whole split

import numpy as np

from data_prep.instances.pairs import CANDIDATE, DIRECTION, SHORT, SPLIT_POINT, TARGET, TRUNCATE, excess_by_side
from megabert.compiled import compiled, inlined
from megabert.randomness.keyed_loops import below, mix_2, mix_3, uniform

LENGTH_RANGES = 8  # labels are even within each: a finer division leaves more odd ones over
LABEL_DELAY = 8  # instances; chains of put-backs at a document's end are rarely as long
TOO_SHORT = 1 << 32  # worse than any length
_OWED = 2 * LABEL_DELAY  # most labels owed to one range: each deal settles one that is due, or adds one
_1 = np.uint64(1)
_excess_by_side = inlined(excess_by_side)


@compiled
def walk_bucket(bucket, options, out):
    """Plan the pairs of a bucket, each with the B that follows its A; return how many.

    Args:
        bucket: First token of each sentence and the end of the last; first sentence of each document and the end of the
            last; keys of the documents.
        options: Key of the pass, key of the labels, share of short targets, longest, whether B may be random.
        out: Written: start and end of A, of B, tokens wanted, first sentence of the document and its end, label, key;
            each with room for a pair a sentence.
    """
    starts_S, document_starts, document_keys = bucket
    pass_key, label_key, short_seq_prob, longest, has_random = options
    a_start, a_end, b_start, b_end, targets, own_first, own_end, labels, keys = out
    owed = new_owed()
    made = 0
    for document in range(len(document_keys)):
        # Sentence order: the sentence that reaches the target is a long one, and must not always be the last.
        is_backwards = not has_random and mix_2(mix_3(pass_key, document_keys[document], 0), DIRECTION) & _1 == _1
        bounds = starts_S[document_starts[document] : document_starts[document + 1] + 1]
        mirror = bounds[0] + bounds[-1]
        if is_backwards:
            bounds = mirror - bounds[::-1]
        sentence, end = 0, len(bounds) - 1
        while end > 1 and sentence < end:
            key = mix_3(pass_key, document_keys[document], sentence)
            target = longest
            if uniform(mix_2(key, SHORT)) < short_seq_prob:
                target = 2 + below(mix_2(key, TARGET), longest - 1)
            stop = min(sentence + 2, end)
            while stop < end and bounds[stop] < bounds[sentence] + target:
                stop += 1
            middle = sentence + 1 + below(mix_2(key, SPLIT_POINT), stop - sentence - 1)
            planned = min(bounds[stop] - bounds[sentence], target)
            label = deal(label_key, owed, min((planned - 1) * LENGTH_RANGES // longest, LENGTH_RANGES - 1))
            a, a_stop, b, b_stop = bounds[sentence], bounds[middle], bounds[middle], bounds[stop]
            if is_backwards:
                a, a_stop, b, b_stop = mirror - b_stop, mirror - b, mirror - a_stop, mirror - a
            a_start[made], a_end[made], b_start[made], b_end[made] = a, a_stop, b, b_stop
            own_first[made], own_end[made] = document_starts[document], document_starts[document + 1]
            targets[made], labels[made], keys[made] = target, label, key
            made += 1
            following = middle if label == 1 and has_random else stop
            if end - following == 1:  # the last sentence alone is no pair: go back by one if that is progress
                following = following - 1 if following - 1 > sentence else end
            sentence = following
    return made


@compiled
def truncate_pairs(pairs, options, text, out):
    """Cut pairs to the tokens wanted and leave out those without a B; return how many are left.

    Args:
        pairs: Start and end of A, of B, tokens wanted, label, key.
        options: Longest, whether B may be random.
        text: Tokens of the bucket, the number of the first, which ids are subwords.
        out: Written: start and length of A, of B, and which pair it was.
    """
    a_starts, a_ends, b_starts, b_ends, targets, labels, keys = pairs
    longest, has_random = options
    tokens, offset, is_subword = text
    a_start, a_length, b_start, b_length, chosen = out
    made = 0
    for pair in range(len(targets)):
        a, a_end, b, b_end = a_starts[pair], a_ends[pair], b_starts[pair], b_ends[pair]
        if has_random:
            a, b_end = _truncate(a, a_end, b, b_end, targets[pair], longest, tokens, offset, is_subword)
        else:
            is_b_first = labels[pair] == 1
            a, a_end, b, b_end = _truncate_evenly(
                (a, a_end, b, b_end), is_b_first, targets[pair], keys[pair], tokens, offset, is_subword
            )
        if b_end > b:
            a_start[made], a_length[made], b_start[made], b_length[made] = a, a_end - a, b, b_end - b
            chosen[made] = pair
            made += 1
    return made


@inlined
def new_owed():
    """Return nothing owed: when labels are due, which, where the first of each range lies, how many; deals, coins."""
    shape = (LENGTH_RANGES, _OWED)
    nothing = np.zeros(LENGTH_RANGES, np.int64)
    return np.zeros(shape, np.int64), np.zeros(shape, np.int64), nothing, nothing.copy(), np.zeros(2, np.int64)


@inlined
def deal(key, owed, length_range):
    """Return the label of the next instance: a coin, or the opposite of one dealt before to the same range of lengths.

    Not at once: a random label puts B back, so the next instance of the document is often a little shorter. Were
    that one always dealt the opposite, length would tell the label (1.7 tokens at length 512 on short documents).
    """
    due, labels, first, count, totals = owed
    totals[0] += 1
    place = first[length_range] % _OWED
    if count[length_range] and due[length_range, place] <= totals[0]:
        first[length_range] += 1
        count[length_range] -= 1
        return labels[length_range, place]
    label = np.int64(mix_2(key, totals[1]) & _1)
    totals[1] += 1
    place = (first[length_range] + count[length_range]) % _OWED
    due[length_range, place], labels[length_range, place] = totals[0] + LABEL_DELAY, 1 - label
    count[length_range] += 1
    return label


@compiled
def draw_places(keys, own_first, own_length, rows, sentences, attempt):
    """Return a random sentence of the split for each of the rows that is not of its own document."""
    places = np.empty(len(rows), np.int64)
    for index, row in enumerate(rows):
        place = below(mix_3(keys[row], CANDIDATE, attempt), sentences - own_length[row])
        places[index] = place + own_length[row] if place >= own_first[row] else place
    return places


@compiled
def try_places(split, rows, places, wanted, least, best):
    """Take the B at a random place for the rows where it is nearer in length than the best so far.

    Args:
        split: First sentence of each document and first token of each sentence of the split, with their ends.
        rows: Which to try; they index what comes after the places.
        places: A sentence of the split for each of them, ascending.
        wanted: Tokens that B should have.
        least: A shorter one is worse than any other.
        best: Read and written: start, end and badness.
    """
    document_starts, starts = split
    begin, end, badness = best
    document = 0
    for index, row in enumerate(rows):
        place = places[index]
        document = _last_from(document_starts, place + 1, document)
        first, stop = document_starts[document], document_starts[document + 1]
        if starts[place] > starts[stop] - wanted[row]:
            # Near the end of a document the start slides back, so that short rests are not taken for want of text.
            place = min(place, max(_last_below(starts, starts[stop] - wanted[row] + 1, first, stop), first))
        up = place + 1
        while up < stop and starts[up] < starts[place] + wanted[row]:
            up += 1
        # Whole sentences up to the wanted length or over it; at the end one can also be left out at the front.
        later = min(place + 1, stop - 1) if up == stop else place
        for low, high in ((place, up), (place, max(up - 1, place + 1)), (later, up)):
            length = starts[high] - starts[low]
            found = abs(length - wanted[row]) + (TOO_SHORT if length < least[row] else 0)
            if found < badness[row]:
                begin[row], end[row], badness[row] = starts[low], starts[high], found


@inlined
def _last_from(ascending, value, start):
    """Return the last index whose element is below ``value``, which that at ``start`` is; quick if it is near."""
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


@inlined
def _truncate(a, a_end, b, b_end, target, longest, tokens, offset, is_subword):
    """Cut A at its front, to the start of a word, and B at its back; return A's start and B's end."""
    from_a, from_b = _excess_by_side(a_end - a, b_end - b, target)
    if from_a:
        a += from_a
        onward = a
        while onward < a_end and is_subword[tokens[onward - offset]]:
            onward += 1
        if onward < a_end:
            a = onward
        else:  # inside the last word
            while is_subword[tokens[a - offset]]:
                a -= 1
    # A last word so long that it alone fills the instance: B is cut further, or the instance is left out.
    return a, b + min(b_end - b - from_b, longest - (a_end - a))


@inlined
def _truncate_evenly(sides, is_b_first, target, key, tokens, offset, is_subword):
    """Cut the sides of a sentence order pair so that no cut shows the order; return A's start and end and B's.

    Each side loses its front or its back, by its own coin: were the outer ends cut, as for the next sentence
    objective, a first side that starts whole would mean "swapped". Which side is the longer, on a tie the second, is
    asked in the order they are written in.
    """
    a, a_end, b, b_end = sides
    if is_b_first:
        from_b, from_a = _excess_by_side(b_end - b, a_end - a, target)
    else:
        from_a, from_b = _excess_by_side(a_end - a, b_end - b, target)
    a, a_end = _cut(a, a_end, from_a, mix_3(key, TRUNCATE, 0), tokens, offset, is_subword)
    b, b_end = _cut(b, b_end, from_b, mix_3(key, TRUNCATE, 1), tokens, offset, is_subword)
    return a, a_end, b, b_end


@inlined
def _cut(start, end, count, coin, tokens, offset, is_subword):
    """Take tokens from a side's back or, if the coin says so and a word starts after them, from its front to there."""
    if count == 0 or coin & _1:
        return start, end - count
    onward = start + count
    while onward < end and is_subword[tokens[onward - offset]]:
        onward += 1
    return (onward, end) if onward < end else (start, end - count)
