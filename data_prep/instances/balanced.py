"""Pairs by the paper's definition (Devlin et al. 2019, section 3.1) without the accidents of the original script.

What is different from google-research/bert's `create_pretraining_data.py`:

- The target length is drawn for each instance, not once for a document.
- Half of the labels are random, within each range of lengths, not in the mean over all.
- A is cut at its front and B at its back, so a true pair stays adjacent, and no side starts inside a word.
- A random B is the true B of another pair. So it is drawn as true ones are: it begins and ends where they do, in the
  middle or at the end of a document, whole or cut, with as many sentences. Nothing in B alone can tell the label.

Every pair is planned with its true B first. Then the pairs with a random label take the Bs of pairs of other buckets,
each one that is as long as its own was and was cut as it was. With this A it makes an instance as long as the true one
would have been, so the length tells nothing either. Copies of a text are in one bucket, so none becomes a random B.

The same walk serves sentence order (Lan et al. 2020). There the two sides change places, and nothing but the text may
tell: each side is cut at its front or its back, by a coin, and half of the documents are walked from their end.
"""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from data_prep.instances.draws import CANDIDATE, LABELS
from data_prep.instances.pairs import SPECIALS_OF_A_PAIR, Bucket, Integers, PairOptions, Pairs
from data_prep.instances.partners import other_tokens, overlaps
from megabert.randomness.keyed import below, mix

if TYPE_CHECKING:
    from data_prep.instances.balanced_loops import PairColumns

TOLERANCE_TOKENS = 8
"""A random B that differs by more from the true one's length gives way to one that ends otherwise, if that is
nearer."""
KEPT_PLANS = 4
"""Buckets whose plans are kept: all of a small split, whose buckets are partners of one another. In a large one, units
that follow each other have a bucket of their windows in common."""


def pair_balanced(bucket: Bucket, options: PairOptions, is_subword: NDArray[np.bool_]) -> Pairs:
    """Make the pairs of one pass over a bucket; documents of one sentence give none."""
    from data_prep.instances.balanced_loops import truncate_pairs

    # Plan all pairs with the B that follows their A. Replace B where the label says so, and only then cut: the cut
    # depends on how long B is.
    pairs = _at(_plan(bucket, options), slice(None))
    has_random = options.metadata.objective == "nsp"
    if has_random:
        _replace_seconds(bucket, options, pairs)
    tokens, longest = bucket.documents.bucket_tokens(bucket.number), _longest(options)
    truncate_pairs(pairs, longest, has_random, (tokens, bucket.starts_S[0], is_subword))
    kept = np.flatnonzero(pairs.b_end > pairs.b_start)
    a_start, a_end, b_start, b_end, label, key = (column[kept] for column in pairs[:6])
    return Pairs(a_start, a_end - a_start, b_start, b_end - b_start, label, key, is_b_first=not has_random)


def _longest(options: PairOptions) -> int:
    return options.metadata.max_seq_length - SPECIALS_OF_A_PAIR


def _plan(bucket: Bucket, options: PairOptions) -> "PairColumns":
    """Plan the pairs of a bucket, uncut, each with the B that follows its A; not to be changed."""
    from data_prep.instances.balanced_loops import PairColumns, WalkOptions, walk_bucket

    plans = bucket.documents.plans
    name = (bucket.number, int(options.key), options.short_seq_prob, options.metadata.objective, options.min_tokens)
    if name not in plans:
        walk_options = WalkOptions(
            pass_key=options.key[()],
            label_key=mix(options.key, bucket.number, LABELS)[()],
            short_seq_prob=options.short_seq_prob,
            longest=_longest(options),
            has_random=options.metadata.objective == "nsp",
            min_tokens=options.min_tokens,
        )
        room = len(bucket.starts_S) - 1  # there are never more pairs than sentences
        dtypes = (*[np.int64] * 4, np.uint8, np.uint64, *[np.int64] * 4)
        columns = PairColumns(*(np.empty(room, dtype) for dtype in dtypes))
        planned = walk_bucket(bucket.starts_S, bucket.document_starts, bucket.document_keys, walk_options, columns)
        while len(plans) >= KEPT_PLANS:
            del plans[next(iter(plans))]  # the oldest
        plans[name] = _at(columns, slice(planned))
    return plans[name]


def _at(pairs: "PairColumns", rows: NDArray[np.bool_] | slice) -> "PairColumns":
    """Return a copy of some pairs."""
    return type(pairs)(*(np.array(column[rows]) for column in pairs))


def _replace_seconds(bucket: Bucket, options: PairOptions, pairs: "PairColumns") -> None:
    """Put the Bs of other texts into the pairs whose label is 1."""
    rows = np.flatnonzero(pairs.label == 1)
    if not len(rows):
        return
    partners = _plan_partners(bucket, options)
    if partners is not None:
        groups = [(rows, partners)]
    else:  # One bucket alone: its texts are parted into two sides, and each takes the Bs of the other.
        side = _sides(bucket, options, pairs)
        groups = [(rows[side[rows]], _at(pairs, ~side)), (rows[~side[rows]], _at(pairs, side))]
    for own, others in groups:
        if len(own) and len(others.key):
            _take_seconds(pairs, own, others)
        else:  # no pair of another text in the whole split: B stays, and the label says so
            pairs.label[own] = 0


def _plan_partners(bucket: Bucket, options: PairOptions) -> "PairColumns | None":
    """Plan the pairs of other buckets that begin in the unit's window; None if there are none."""
    documents, plans = bucket.documents, []
    for begin, end in other_tokens(bucket, options):
        for number in overlaps(documents.first_tokens, begin, end):
            plan = _plan(Bucket(documents, number), options)
            is_inside = (plan.a_start >= begin) & (plan.a_start < end)
            plans.append(plan if is_inside.all() else _at(plan, is_inside))
    if not any(len(plan.key) for plan in plans):
        return None
    return type(plans[0])(*map(np.concatenate, zip(*plans, strict=True)))


def _sides(bucket: Bucket, options: PairOptions, pairs: "PairColumns") -> NDArray[np.bool_]:
    """Part the pairs into two sides of about equal size, all pairs of a text and its copies on one of them.

    Texts are put in an order of the pass's own. Those with more than half of the pairs before their middle are one
    side; so no side is empty where two texts have pairs.
    """
    texts, text_D = np.unique(bucket.documents.document_hashes(bucket.number), return_inverse=True)
    text = text_D[pairs.document]
    order = np.argsort(mix(options.key, texts))
    counts = np.bincount(text, minlength=len(texts))[order]
    side = np.empty(len(texts), bool)
    side[order] = 2 * np.cumsum(counts) - counts > len(text)
    return side[text]


def _take_seconds(pairs: "PairColumns", rows: Integers, others: "PairColumns") -> None:
    """Give each of some pairs the B of another: of those that are nearest in length, one at random."""
    from data_prep.instances.balanced_loops import CUT

    kind, length, keys = pairs.kind[rows], pairs.b_length[rows], pairs.key[rows]
    # First among the Bs that end as the own one did: kinds are further apart than any two lengths of a kind.
    apart = 2 * int(max(length.max(), others.b_length.max()))
    chosen = _nearest(others.kind * apart + others.b_length, kind * apart + length, keys)
    # Few pairs (a small split) may hold none that is nearly as long; then the length is what matters.
    far = np.flatnonzero(np.abs(others.b_length[chosen] - length) > TOLERANCE_TOKENS)
    if len(far):
        chosen[far] = _nearest(others.b_length, length[far], keys[far])
    # A B that is cut ends exactly where the own one did, at the same length; any other is left whole.
    start, other_length = others.b_start[chosen], others.b_length[chosen]
    cut_length = np.minimum(length, others.b_end[chosen] - start)
    pairs.b_start[rows] = start
    pairs.b_end[rows] = start + np.where(kind == CUT, cut_length, other_length)


def _nearest(values: Integers, wanted: Integers, keys: NDArray[np.uint64]) -> Integers:
    """Return an index for each wanted value: of the nearest in ``values``, drawn by its key among equal ones."""
    from megabert.randomness.keyed_loops import order_of

    # Values are small, so that what is looked up for a value is looked up once, in tables.
    counts = np.bincount(values)
    first = np.cumsum(counts) - counts
    present = np.flatnonzero(counts)
    last_nearest = (present[:-1] + present[1:] - 1) // 2  # values above are nearer to the next one, or as near
    nearest = present[np.searchsorted(last_nearest, np.arange(wanted.max() + 1))][wanted]
    return order_of(values)[first[nearest] + below(mix(keys, CANDIDATE), counts[nearest])]
