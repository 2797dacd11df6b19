"""Pairs by the paper's definition (Devlin et al. 2019, section 3.1) without the accidents of the original script.

Differences from google-research/bert's `create_pretraining_data.py`:

- The target length is drawn for each instance, not once for a document.
- Half of the labels are random at each length, not in the mean over all.
- A is cut at its front and B at its back, so a true pair stays adjacent, and no side starts inside a word.
- A random B is the true B of another pair. So it begins and ends like a true one, in the middle or at the end of a
  document, whole or cut, and has as many sentences. Nothing in B alone can tell the label.
- Pairs with a random label exchange their Bs: each gives its own to a pair of another text and takes the B of such a
  pair. So a text is in a pass once, as often with one label as with the other, and a model that remembers the texts it
  has seen learns nothing about the label. The original puts the true B of a random pair back and draws the random one
  elsewhere: nearly every random B is in the pass a second time, and a true B is not.

Every pair is planned with its true B first, and labels are dealt. Then those with label 1 exchange, each with one whose
B is as long and was cut in the same way. With this A it makes an instance as long as the true one would have been, so
the length tells nothing either.

Random Bs should come from anywhere in the corpus. Drawn from all of it, each of them would be in another bucket, and a
unit would open them all: 20,000 files at 500 GB, of which it uses a token or two. So each unit uses a part of the
split, another one in each pass: the buckets of its group (`partner_buckets`). Documents are sorted by the hash of their
text, so any part is a random sample.

The same walk serves sentence order (Lan et al. 2020). There the two sides change places, and nothing but the text may
tell: each side is cut at its front or its back, by a coin, and half of the documents are walked from their end.
"""

import numpy as np
from numpy.typing import NDArray

from data_prep.instances.draws import LABELS, PARTNER, SIDE
from data_prep.instances.pairs import PAIR_SPECIALS, PARTNER_TOKENS, DocumentBucket, Integers, PairOptions, Pairs
from megabert.foundation.randomness.keyed import mix

KEPT_PLANS = 4
"""Buckets whose plans are kept: all of a small split, whose buckets are partners of one another."""


def pair_balanced(bucket: DocumentBucket, options: PairOptions, is_subword: NDArray[np.bool_]) -> Pairs:
    """Make the pairs of one pass over a bucket; documents of one sentence give none."""
    from data_prep.instances.balanced_loops import truncate_pairs

    # Plan all pairs with the B that follows their A. Replace B if the label says so, and only then cut: the cut depends
    # on how long B is. The plan itself is copied, not changed: partners of this bucket use it too.
    pairs = _plan(bucket, options).take(slice(None))
    has_random = options.metadata.objective == "nsp"
    if has_random:
        _exchange_seconds(bucket, options, pairs)
    tokens, longest = bucket.documents.bucket_tokens(bucket.number), _longest(options)
    truncate_pairs(pairs, longest, has_random, (tokens, bucket.starts_S[0], is_subword))
    return pairs.take(np.flatnonzero(pairs.b_end > pairs.b_start))


def _longest(options: PairOptions) -> int:
    return options.metadata.max_seq_length - PAIR_SPECIALS


def _plan(bucket: DocumentBucket, options: PairOptions) -> Pairs:
    """Plan the pairs of a bucket, uncut, each with the B that follows its A; its partners use the plan as well."""
    from data_prep.instances.balanced_loops import WalkOptions, walk_bucket

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
        columns = np.empty((5, room), np.int64)
        a_start, a_end, b_start, b_end, target = columns
        label, key = np.empty(room, np.uint8), np.empty(room, np.uint64)
        pairs = Pairs(a_start, a_end, b_start, b_end, label, key, target)
        planned = walk_bucket(bucket.starts_S, bucket.document_starts, bucket.document_keys, walk_options, pairs)
        while len(plans) >= KEPT_PLANS:
            del plans[next(iter(plans))]  # the oldest
        plans[name] = pairs.take(slice(planned))
        _deal_labels(plans[name])
    plan: Pairs = plans[name]
    return plan


def _deal_labels(pairs: Pairs) -> None:
    """Give half of the pairs the label 1, at each length.

    Pairs are sorted by the length that they will have, equal ones at random. Of each two neighbours one has label 1, by
    a coin.
    """
    from megabert.foundation.randomness.keyed_loops import order_of

    length = np.minimum(pairs.a_length + pairs.b_length, pairs.target)
    draws = mix(pairs.key, LABELS)
    order = order_of(draws)
    order = order[order_of(length[order])]
    coins = (draws[order[::2]] & np.uint64(1)).astype(np.uint8)
    pairs.label[order[::2]] = coins
    pairs.label[order[1::2]] = 1 - coins[: len(order) // 2]


def partner_buckets(bucket: DocumentBucket, options: PairOptions) -> list[int]:
    """Return the buckets that exchange random Bs with a bucket in a pass, itself among them, ascending.

    In each pass, one random order of the buckets parts them into groups of two or three, or of as many as hold
    `PARTNER_TOKENS`. Every unit of a group works out who takes from whom, and all come to the same. So every B is used
    once in each pass, however units are dealt out.
    """
    buckets, tokens = bucket.documents.num_buckets, int(bucket.documents.first_tokens[-1])
    size = min(max(2, -(-PARTNER_TOKENS * buckets // max(tokens, 1))), buckets)
    groups = buckets // size
    order = np.argsort(mix(options.key, PARTNER, np.arange(buckets)))
    group = np.arange(buckets) * groups // buckets
    own = group[np.flatnonzero(order == bucket.number)]
    return sorted(order[group == own].tolist())


def _exchange_seconds(bucket: DocumentBucket, options: PairOptions, pairs: Pairs) -> None:
    """Have the pairs whose label is 1, of this bucket and of its partners, exchange their Bs."""
    from data_prep.instances.balanced_loops import excess_by_side

    # All pairs with label 1 of this bucket and its partners, and the text that each is from.
    parts, texts, partners = [], [], partner_buckets(bucket, options)
    for number in partners:
        partner = DocumentBucket(bucket.documents, number)
        plan = _plan(partner, options)
        parts.append(plan.take(np.flatnonzero(plan.label == 1)))
        texts.append(bucket.documents.document_hashes(number)[partner.document_of(parts[-1].a_start)])
    everyone, first = Pairs.join(parts), sum(part.size for part in parts[: partners.index(bucket.number)])

    # A B ends in one of three ways: with its document, where the target is reached, or cut there.
    length = everyone.a_length + everyone.b_length
    excess = excess_by_side(everyone.a_length, everyone.b_length, everyone.target)[1]
    b_length, is_cut, is_reached = everyone.b_length - excess, excess > 0, length >= everyone.target
    # One number for how a B ends and how long it is, so that neighbours in its order are alike in both. With lengths of
    # 0 to 9 (apart = 10), a B that ends with its document has 0 up to 9; one that reaches the target, 10 (length 9) up
    # to 19 (length 0); one that is cut, 20 (length 0) up to 29. Where two stretches meet, lengths are the same.
    apart = int(b_length.max(initial=0)) + 1
    values = np.where(is_cut, 2 * apart + b_length, np.where(is_reached, 2 * apart - 1 - b_length, b_length))

    takes = _takes(values, np.concatenate(texts), everyone.key, options)
    rows = np.flatnonzero(pairs.label == 1)
    if takes is None:  # no pair of another text in the whole split: B stays, and the label says so
        pairs.label[rows] = 0
        return
    # A B that is cut ends exactly where the own one did, at the same length; any other is left whole.
    own = slice(first, first + len(rows))
    start, whole = everyone.b_start[takes[own]], b_length[takes[own]]
    cut = np.minimum(b_length[own], everyone.b_length[takes[own]])
    pairs.b_start[rows] = start
    pairs.b_end[rows] = start + np.where(is_cut[own], cut, whole)


def _takes(
    values: Integers, hashes: NDArray[np.uint64], keys: NDArray[np.uint64], options: PairOptions
) -> Integers | None:
    """Return whose B each of these pairs takes: one of another text, as near as can be in its value.

    Args:
        values: How each pair's B ends and how long it is, as one number.
        hashes: Hash of the text that each pair is from.
        keys: Key of each pair.
        options: Options of the pass.

    Returns:
        The number of a pair for each, every pair once. If one text has more than half of all pairs, each B of the
        others is taken by as many of its pairs as need be. None if there is no other text.
    """
    from data_prep.instances.balanced_loops import exchange_alike, part_alike
    from megabert.foundation.randomness.keyed_loops import order_of

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
    takes[rows] = rows[exchange_alike(ends, text[rows], keys[rows])]
    return takes


def _taken_of_few(values: Integers, is_common: NDArray[np.bool_]) -> Integers:
    """Return whose B each pair takes where one text has most: in order of their values, evenly from the other side."""
    sides, takes = (np.flatnonzero(is_common), np.flatnonzero(~is_common)), np.empty_like(values)
    first, second = (side[np.argsort(values[side], kind="stable")] for side in sides)
    for own, others in ((first, second), (second, first)):
        takes[own] = others[np.arange(len(own)) * len(others) // len(own)]
    return takes
