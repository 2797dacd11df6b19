"""Which text the random Bs of a unit come from: a part of the split that stands for all of it.

Random Bs should come from anywhere in the corpus. Drawn from all of it, each of them would be in another bucket, and a
unit would open them all: 20,000 files at 500 GB, of which it uses a token or two. So each unit uses a part of the
split, another one in each pass. Documents are sorted by the hash of their text, so any part is a random sample.

balanced: In each pass, one random order of the buckets parts them into groups of two or three, or of as many as hold
`PARTNER_TOKENS`. The buckets of a group exchange Bs. Every unit of a group works out who takes from whom, and all come
to the same. So every B is used once in each pass, however units are dealt out.

google: A window of documents, about as many as a bucket has. The split is seen as a circle, and one draw for each pass
turns the windows of all units against their own buckets. So every document is as likely to be in a unit's window as
every other, and in each pass all windows together cover the split once.

Where the part would be the whole split (2 million tokens and less), it is the whole split.
"""

import numpy as np

from data_prep.instances.draws import PARTNER
from data_prep.instances.pairs import DocumentBucket, PairOptions
from megabert.randomness.keyed import mix

PARTNER_TOKENS = 2_000_000
"""A part of the split holds at least so many tokens. At length 512 these are 2,000 pairs that exchange, among which
nearly every one finds a B of exactly its own length."""


def partner_buckets(bucket: DocumentBucket, options: PairOptions) -> list[int]:
    """Return the buckets that exchange random Bs with a bucket in a pass, itself among them, ascending."""
    buckets, tokens = bucket.documents.num_buckets, int(bucket.documents.first_tokens[-1])
    size = min(max(2, -(-PARTNER_TOKENS * buckets // max(tokens, 1))), buckets)
    groups = buckets // size
    order = np.argsort(mix(options.key, PARTNER, np.arange(buckets)))
    group = np.arange(buckets) * groups // buckets
    own = group[np.flatnonzero(order == bucket.number)]
    return sorted(order[group == own].tolist())


def other_documents(bucket: DocumentBucket, options: PairOptions) -> tuple[int, int]:
    """Return the first document of a unit's window over all documents, and how many it has; it may go on at the start.

    It has as many as a bucket has in the mean, or as hold `PARTNER_TOKENS` in the mean, if that is more. The unit's own
    bucket is not left out: the original draws from all documents and compares with A's own afterwards.
    """
    starts, documents = bucket.documents.bucket_starts, bucket.documents.num_documents
    share = max(1 / bucket.documents.num_buckets, PARTNER_TOKENS / max(int(starts[-1, 2]), 1))
    if share >= 1:
        return 0, documents
    # Drawn below a number that may be more than `megabert.randomness.keyed.below` takes.
    first = int(starts[bucket.number, 0]) + (int(mix(options.key, PARTNER)) * documents >> 64)
    return first % documents, max(1, round(share * documents))
