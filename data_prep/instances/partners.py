"""Which text the random Bs of a unit come from: a window of the split that stands for all of it.

Random Bs should come from anywhere in the corpus. Drawn from all of it, each of them would be in another bucket, and a
unit would open them all: 20,000 files at 500 GB, of which it uses a token or two. So each unit draws from a window,
a stretch of the split about as long as its own bucket. Windows overlap two or three buckets, whatever the corpus.

What a unit draws is uniform over the split all the same. Documents are sorted by the hash of their text, so any stretch
is a random sample of them. The split is seen as a circle, and one draw for each pass turns the windows of all units
against their own buckets. The draw is uniform over the circle, so every token (google: every document) is as likely to
be in a unit's window as every other; the window has a fixed length, so within it every one is as likely to be taken.
A bucket is thereby drawn from as often as its size asks for. And since all windows turn together, they tile the circle
as the buckets do: in each pass, every token is in the window of one unit.

Where the window would be the whole split (2 million tokens and less), it is the whole split.
"""

from collections.abc import Iterator

from numpy.typing import NDArray

from data_prep.instances.draws import PARTNER
from data_prep.instances.pairs import Bucket, Integers, PairOptions
from megabert.randomness.keyed import below, mix

PARTNER_TOKENS = 2_000_000
"""A window holds at least so many tokens. At length 512 these are 4,000 pairs, among which nearly every pair finds a B
of exactly its own length."""


def other_tokens(bucket: Bucket, options: PairOptions) -> list[tuple[int, int]]:
    """Return the window of a unit over the tokens of all other buckets, as ranges from begin to below end.

    It is as long as the unit's own bucket, or `PARTNER_TOKENS`, if that is more.
    """
    first_tokens, number = bucket.documents.first_tokens, bucket.number
    own_begin, own_end, total = int(first_tokens[number]), int(first_tokens[number + 1]), int(first_tokens[-1])
    # The other buckets are a circle of their own, which begins behind the unit's.
    others = total - own_end + own_begin
    length = min(max(PARTNER_TOKENS, own_end - own_begin), others)
    key = mix(options.key, PARTNER)
    begin = _draw_below(key, others)
    if length == others > 0:  # all of them, from the first token of a bucket
        step = int(below(key, bucket.documents.num_buckets - 1))
        begin = (int(first_tokens[(number + 1 + step) % bucket.documents.num_buckets]) - own_end) % total
    return [
        part
        for first, end in _on_circle(begin, length, others)
        for part in _on_circle((own_end + first) % total, end - first, total)
    ]


def other_documents(bucket: Bucket, options: PairOptions) -> tuple[int, int]:
    """Return the first document of a unit's window over all documents, and how many it has; it may go on at the start.

    It has as many as a bucket has in the mean, or as hold `PARTNER_TOKENS` in the mean, if that is more. The unit's own
    bucket is not left out: the original draws from all documents and compares with A's own afterwards.
    """
    starts, documents = bucket.documents.bucket_starts, bucket.documents.num_documents
    share = max(1 / bucket.documents.num_buckets, PARTNER_TOKENS / max(int(starts[-1, 2]), 1))
    if share >= 1:
        return 0, documents
    first = int(starts[bucket.number, 0]) + _draw_below(mix(options.key, PARTNER), documents)
    return first % documents, max(1, round(share * documents))


def overlaps(first_tokens: Integers, begin: int, end: int) -> Iterator[int]:
    """Yield the buckets that hold some of the tokens from ``begin`` to below ``end``."""
    first, last = first_tokens[1:-1].searchsorted([begin, end - 1], side="right").tolist()
    yield from range(first, last + 1)


def _draw_below(key: NDArray, size: int) -> int:
    """Draw a number from 0 to below ``size``, which may be more than `megabert.randomness.keyed.below` takes."""
    return int(key) * size >> 64


def _on_circle(begin: int, length: int, size: int) -> list[tuple[int, int]]:
    """Return the ranges, one or two, of ``length`` numbers from ``begin`` on, where 0 follows ``size - 1``."""
    ranges = [(begin, min(begin + length, size)), (0, begin + length - size)]
    return [(first, end) for first, end in ranges if first < end]
