"""Pairs by the paper's definition (Devlin et al. 2019, section 3.1) without the accidents of the original script.

What is different from google-research/bert's `create_pretraining_data.py`:

- The target length is drawn for each instance, not once for a document.
- Half of the labels are random at each length, not in the mean over all.
- A is cut at its front and B at its back, so a true pair stays adjacent, and no side starts inside a word.
- A random B is the true B of another pair. So it is drawn as true ones are: it begins and ends where they do, in the
  middle or at the end of a document, whole or cut, with as many sentences. Nothing in B alone can tell the label.
- Pairs with a random label exchange their Bs: each gives its own to one of another text and takes that of one. So a
  text is as often in a pass with one label as with the other, once, and a model that remembers what it has seen learns
  nothing of the label by that. The original puts the true B of a random pair back and draws the random one elsewhere:
  the text of nearly every random B is in the pass again, and that of a true one is not.

Every pair is planned with its true B first, and labels are dealt. Then those with label 1 exchange, each with one whose
B is as long and was cut in the same way. With this A it makes an instance as long as the true one would have been, so
the length tells nothing either.

The same walk serves sentence order (Lan et al. 2020). There the two sides change places, and nothing but the text may
tell: each side is cut at its front or its back, by a coin, and half of the documents are walked from their end.
"""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from data_prep.instances.draws import LABELS, SIDE
from data_prep.instances.pairs import SPECIALS_OF_A_PAIR, DocumentBucket, Integers, PairOptions, Pairs
from data_prep.instances.partners import partner_buckets
from megabert.randomness.keyed import mix

if TYPE_CHECKING:
    from data_prep.instances.balanced_loops import PairColumns

KEPT_PLANS = 4
"""Buckets whose plans are kept: all of a small split, whose buckets are partners of one another."""


def pair_balanced(bucket: DocumentBucket, options: PairOptions, is_subword: NDArray[np.bool_]) -> Pairs:
    """Make the pairs of one pass over a bucket; documents of one sentence give none."""
    from data_prep.instances.balanced_loops import truncate_pairs

    # Plan all pairs with the B that follows their A. Replace B where the label says so, and only then cut: the cut
    # depends on how long B is.
    pairs = _at(_plan(bucket, options), slice(None))
    has_random = options.metadata.objective == "nsp"
    if has_random:
        _exchange_seconds(bucket, options, pairs)
    tokens, longest = bucket.documents.bucket_tokens(bucket.number), _longest(options)
    truncate_pairs(pairs, longest, has_random, (tokens, bucket.starts_S[0], is_subword))
    kept = np.flatnonzero(pairs.b_end > pairs.b_start)
    a_start, a_end, b_start, b_end, label, key = (column[kept] for column in pairs[:6])
    return Pairs(a_start, a_end - a_start, b_start, b_end - b_start, label, key, is_b_first=not has_random)


def _longest(options: PairOptions) -> int:
    return options.metadata.max_seq_length - SPECIALS_OF_A_PAIR


def _plan(bucket: DocumentBucket, options: PairOptions) -> "PairColumns":
    """Plan the pairs of a bucket, uncut, each with the B that follows its A; not to be changed."""
    from data_prep.instances.balanced_loops import PairColumns, WalkOptions, walk_bucket

    plans = bucket.documents.plans
    name = (bucket.number, int(options.key), options.short_seq_prob, options.metadata.objective, options.min_tokens)
    if name not in plans:
        walk_options = WalkOptions(
            pass_key=options.key[()],
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
        _deal_labels(plans[name])
    return plans[name]


def _deal_labels(pairs: "PairColumns") -> None:
    """Give half of the pairs the label 1, at each length.

    Pairs are sorted by the length that they will have, equal ones at random. Of each two neighbours one has label 1, by
    a coin.
    """
    from megabert.randomness.keyed_loops import order_of

    length = np.minimum(pairs.a_end - pairs.a_start + pairs.b_end - pairs.b_start, pairs.target)
    draws = mix(pairs.key, LABELS)
    order = order_of(draws)
    order = order[order_of(length[order])]
    coins = (draws[order[::2]] & np.uint64(1)).astype(np.uint8)
    pairs.label[order[::2]] = coins
    pairs.label[order[1::2]] = 1 - coins[: len(order) // 2]


def _at(pairs: "PairColumns", rows: NDArray[np.int64] | slice) -> "PairColumns":
    """Return a copy of some pairs."""
    return type(pairs)(*(np.array(column[rows]) for column in pairs))


def _exchange_seconds(bucket: DocumentBucket, options: PairOptions, pairs: "PairColumns") -> None:
    """Have the pairs whose label is 1, of this bucket and of its partners, exchange their Bs."""
    from data_prep.instances.balanced_loops import CUT

    parts, texts, rows = [], [], np.flatnonzero(pairs.label == 1)
    for number in partner_buckets(bucket, options):
        plan = _plan(DocumentBucket(bucket.documents, number), options)
        parts.append(_at(plan, np.flatnonzero(plan.label == 1)))
        texts.append(bucket.documents.document_hashes(number)[parts[-1].document])
        if number == bucket.number:
            first = sum(len(part.key) for part in parts[:-1])
    everyone = type(pairs)(*map(np.concatenate, zip(*parts, strict=True)))
    takes = _takes(everyone, np.concatenate(texts), options)
    if takes is None:  # no pair of another text in the whole split: B stays, and the label says so
        pairs.label[rows] = 0
        return
    other = takes[first : first + len(rows)]
    # A B that is cut ends exactly where the own one did, at the same length; any other is left whole.
    start, other_length = everyone.b_start[other], everyone.b_length[other]
    cut_length = np.minimum(pairs.b_length[rows], everyone.b_end[other] - start)
    pairs.b_start[rows] = start
    pairs.b_end[rows] = start + np.where(pairs.kind[rows] == CUT, cut_length, other_length)


def _takes(pairs: "PairColumns", hashes: NDArray[np.uint64], options: PairOptions) -> Integers | None:
    """Return whose B each of these pairs takes: one of another text, as near as can be in length and end.

    Args:
        pairs: All pairs with label 1 of buckets that are partners.
        hashes: Of the text that each is from.
        options: Options of the pass.

    Returns:
        The number of a pair for each, every pair once. If one text has more than half of all pairs, each B of the
        others is taken by as many of its pairs as need be. None if there is no other text.
    """
    from data_prep.instances.balanced_loops import REACHING, exchange_alike, part_alike
    from megabert.randomness.keyed_loops import order_of

    # Neighbours in this order end alike and are as long, or nearly; at its two turns, they are as long.
    apart = int(pairs.b_length.max(initial=0)) + 1
    length = np.where(pairs.kind == REACHING, apart - 1 - pairs.b_length, pairs.b_length)
    values = pairs.kind * apart + length
    different, text, counts = np.unique(hashes, return_inverse=True, return_counts=True)
    if 2 * counts.max(initial=0) > len(text):
        return _taken_of_few(values, text == counts.argmax()) if len(different) > 1 else None
    rows = order_of(values)
    ends = part_alike(values[rows], text[rows], len(different))
    # Within each group the pairs of a text are next to each other, and texts are in an order of the pass's own.
    group = np.repeat(np.arange(len(ends)), np.diff(ends, prepend=0))
    order = order_of(mix(options.key, SIDE, different)[text[rows]])
    rows = rows[order[order_of(group[order])]]
    takes = np.empty_like(rows)
    takes[rows] = rows[exchange_alike(ends, text[rows], pairs.key[rows])]
    return takes


def _taken_of_few(values: Integers, is_common: NDArray[np.bool_]) -> Integers:
    """Return whose B each pair takes where one text has most: in order of their values, evenly from the other side."""
    sides, takes = (np.flatnonzero(is_common), np.flatnonzero(~is_common)), np.empty_like(values)
    first, second = (side[np.argsort(values[side], kind="stable")] for side in sides)
    for own, others in ((first, second), (second, first)):
        takes[own] = others[np.arange(len(own)) * len(others) // len(own)]
    return takes
