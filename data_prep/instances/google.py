"""The original's pairs (google-research/bert ``create_pretraining_data.py``), equal in distribution.

Every sentence is treated as if an instance began at it, with draws keyed by (document, sentence); then a walk
over each document takes the starts that are really reached. A start is reached once at most, so its draws are
as good as fresh ones, and everything but the walk is array arithmetic.

The accidents of the original are kept: the target length is drawn once for a document, a chunk of one sentence always
gets a random B, a random B may come from A's own document, and its length tells something of the label.
"""

import numpy as np
from numpy.typing import NDArray

from data_prep.documents.document_set import DocumentSet
from data_prep.instances.draws import CANDIDATE, IS_RANDOM, PARTNER, SHORT, SPLIT_POINT, START, TARGET, TRUNCATE
from data_prep.instances.pairs import PAIR_SPECIALS, PARTNER_TOKENS, DocumentBucket, Integers, PairOptions, Pairs
from megabert.foundation.randomness.keyed import below, mix, uniform

DRAWS_OF_ANOTHER_DOCUMENT = 10


def pair_google(bucket: DocumentBucket, options: PairOptions) -> Pairs:
    """Make the pairs of one pass over a bucket."""
    from data_prep.documents.array_loops import follow
    from data_prep.instances.pair_walk_loops import excess_by_side

    starts, sentences, keys = bucket.starts_S, np.arange(len(bucket.document_S)), bucket.keys_S(options)
    ends_S = bucket.document_starts[1:][bucket.document_S]
    # The target is drawn once per document and pass, not per instance.
    targets = _draw_targets(mix(options.key, bucket.document_keys), options)[bucket.document_S]
    # The sentences from each start that together reach the target, and how many of these are A's: one at least, and
    # one at least left for B if there are two.
    ends = np.minimum(np.maximum(np.searchsorted(starts, starts[:-1] + targets), sentences + 1), ends_S)
    count = ends - sentences
    a_count = np.where(count > 1, 1 + below(mix(keys, SPLIT_POINT), np.maximum(count - 1, 1)), 1)
    # A chunk of one sentence has no true B; of the others, half get a random one.
    is_random = (count == 1) | (uniform(mix(keys, IS_RANDOM)) < 0.5)
    # The sentences after A of a random pair are put back, and start the next instance.
    chosen = follow(np.where(is_random, sentences + a_count, ends), ends_S)

    # From here on only the starts that are reached. B is the text after A, or random text as long as the target has
    # room.
    a_start, middle = starts[chosen], starts[chosen + a_count[chosen]]
    a_length = middle - a_start
    b_start, b_length = middle.copy(), starts[ends[chosen]] - middle
    rows = np.flatnonzero(is_random[chosen])
    wanted = (targets[chosen] - a_length)[rows]
    other = _random_documents(bucket, options, chosen[rows])
    b_start[rows], b_length[rows] = _text_of(bucket.documents, other, keys[chosen[rows]], wanted)
    # Each token over the limit is taken from the front or the back of its side, by its own coin.
    from_a, from_b = excess_by_side(a_length, b_length, options.metadata.max_seq_length - PAIR_SPECIALS)
    a_start += heads(mix(keys[chosen], TRUNCATE, 0), from_a)
    b_start += heads(mix(keys[chosen], TRUNCATE, 1), from_b)
    a_end, b_end = a_start + a_length - from_a, b_start + b_length - from_b
    return Pairs(a_start, a_end, b_start, b_end, is_random[chosen].astype(np.uint8), keys[chosen])


def _draw_targets(keys: NDArray[np.uint64], options: PairOptions) -> Integers:
    """Draw the wanted number of tokens for each key: the full length or, with ``short_seq_prob``, 2 to that."""
    longest = options.metadata.max_seq_length - PAIR_SPECIALS
    is_short = uniform(mix(keys, SHORT)) < options.short_seq_prob
    return np.where(is_short, 2 + below(mix(keys, TARGET), longest - 1), longest)


def other_documents(bucket: DocumentBucket, options: PairOptions) -> tuple[int, int]:
    """Return the first document of a unit's window over all documents, and how many it has; it may wrap around.

    It has as many as a bucket has on average, or as hold `PARTNER_TOKENS` on average, if that is more. The split is
    seen as a circle, and one draw for each pass turns the windows of all units against their own buckets. So every
    document is as likely to be in a unit's window as every other, and in each pass all windows together cover the split
    once. The unit's own bucket is not left out: the original draws from all documents and compares with A's own
    afterwards. `data_prep.instances.balanced` says why a unit does not draw from all of them.
    """
    starts, documents = bucket.documents.bucket_starts, bucket.documents.num_documents
    share = max(1 / bucket.documents.num_buckets, PARTNER_TOKENS / max(int(starts[-1, 2]), 1))
    if share >= 1:
        return 0, documents
    # Drawn below a number that may be more than `megabert.foundation.randomness.keyed.below` takes.
    first = int(starts[bucket.number, 0]) + (int(mix(options.key, PARTNER)) * documents >> 64)
    return first % documents, max(1, round(share * documents))


def _random_documents(bucket: DocumentBucket, options: PairOptions, chosen: Integers) -> Integers:
    """Draw a document of the unit's window for each instance, numbered over the split."""
    documents, keys = bucket.documents, bucket.keys_S(options)[chosen]
    own = bucket.document_S[chosen] + documents.bucket_starts[bucket.number, 0]
    first, count = other_documents(bucket, options)
    other = own.copy()
    for attempt in range(DRAWS_OF_ANOTHER_DOCUMENT):
        # The tenth draw is kept even if it is the own document, and is still labelled random.
        same = np.flatnonzero(other == own)
        if not len(same):
            break
        other[same] = (first + below(mix(keys[same], CANDIDATE, attempt), count)) % documents.num_documents
    return other


def _text_of(
    documents: DocumentSet, other: Integers, keys: NDArray[np.uint64], wanted: Integers
) -> tuple[Integers, Integers]:
    """Draw where B starts, uniform over a document's sentences; it ends with the document or at ``wanted`` tokens."""
    begin, length = np.empty_like(other), np.empty_like(other)
    for number, rows in documents.by_bucket(other, documents.bucket_starts[:, 0]):
        document_starts, starts = documents.sentences(number)
        document = other[rows] - documents.bucket_starts[number, 0]
        first, end = document_starts[document], document_starts[document + 1]
        begin[rows] = starts[first + below(mix(keys[rows], START), end - first)]
        # Whole sentences from there on, one at least.
        stop = np.searchsorted(starts, begin[rows] + np.maximum(wanted[rows], 1))
        length[rows] = starts[np.minimum(stop, end)] - begin[rows]
    return begin, length


def heads(keys: NDArray[np.uint64], tosses: Integers) -> Integers:
    """Return how many of so many fair coins show heads: the tokens that truncation takes from the front."""
    result = np.zeros(len(tosses), np.int64)
    rows = np.flatnonzero(tosses > 0)
    word = 0
    # 64 coins at a time: the bits of a random word that are set are its heads.
    while len(rows):
        bits = np.minimum(tosses[rows] - 64 * word, 64).astype(np.uint64)
        coins = mix(keys[rows], word) >> (np.uint64(64) - bits)
        result[rows] += np.bitwise_count(coins)
        word += 1
        rows = rows[tosses[rows] > 64 * word]
    return result
