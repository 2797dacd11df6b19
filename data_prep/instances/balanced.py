"""Pairs by the paper's definition (Devlin et al. 2019, section 3.1) without the accidents of the original script.

Differences from google-research/bert's `create_pretraining_data.py`:

- The target length is drawn for each instance, not once for a document.
- Half of the labels are random at each length, not in the mean over all.
- What does not fit in an instance begins the next one. A true pair stays adjacent, and no side starts inside a word.
- A random B is the true B of another pair. So it begins and ends like a true one, in the middle or at the end of a
  document, whole or cut, and has as many sentences. Nothing in B alone can tell the label.
- Pairs with a random label exchange their Bs: each gives its own to a pair of another text and takes the B of such a
  pair. So a text is in a pass once, as often with one label as with the other, and a model that remembers the texts it
  has seen learns nothing about the label. The original puts the true B of a random pair back and draws the random one
  elsewhere: nearly every random B is in the pass a second time, and a true B is not.

Every pair is planned with its true B first, and labels are dealt. Then those with label 1 exchange, each with one whose
B is as long and begins and ends in the same way. With this A it makes an instance as long as the true one would have
been, so the length does not show the label either.

Random Bs should come from anywhere in the corpus. Drawn from all of it, each of them would be in another bucket, and a
unit would open them all: 20,000 files at 500 GB, of which it uses a token or two. So each unit uses a part of the
split, another one in each pass: the buckets of its group (`partner_buckets`). Documents are sorted by the hash of their
text, so any part is a random sample.

The same walk serves sentence order (Lan et al. 2020). There the two sides change places, and only the text may show
it: both are whole sentences, or are cut at their front or their back, by a coin, where two sentences are too long;
and half of the documents are walked from their end.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep.instances.draws import LABELS, PARTNER, SIDE
from data_prep.instances.pairs import PAIR_SPECIALS, PARTNER_TOKENS, DocumentBucket, Integers, PairOptions, Pairs
from megabert.foundation.randomness.keyed import mix, order_of
from megabert.tokens.tokenization import Tokenizer

KEPT_PLANS = 4
"""Buckets whose plans are kept: all of a small split, whose buckets are partners of one another."""


def pair_balanced(bucket: DocumentBucket, options: PairOptions, tokenizer: Tokenizer) -> Pairs:
    """Make the pairs of one pass over a bucket; documents of one sentence give none."""
    from data_prep.instances.balanced_loops import truncate_pairs

    # Plan all pairs with the B that follows their A, then replace B if the label says so. The plan itself is copied,
    # not changed: partners of this bucket use it too.
    pairs = _plan(bucket, options, tokenizer).take(slice(None))
    if options.metadata.objective == "nsp":
        _exchange_seconds(bucket, options, pairs, tokenizer)
    else:
        truncate_pairs(pairs, _longest(options), _words(bucket, tokenizer))
    return pairs.take(np.flatnonzero(pairs.b_end > pairs.b_start))


def _words(bucket: DocumentBucket, tokenizer: Tokenizer) -> Any:
    from data_prep.instances.pair_walk_loops import Words

    return Words(bucket.documents.read(bucket.number).ids_T, bucket.starts_S[0], tokenizer.is_subword)


def _longest(options: PairOptions) -> int:
    return options.metadata.max_seq_length - PAIR_SPECIALS


def _plan(bucket: DocumentBucket, options: PairOptions, tokenizer: Tokenizer) -> Pairs:
    """Plan the pairs of a bucket, uncut, each with the B that follows its A; its partners use the plan as well."""
    from data_prep.instances.pair_walk_loops import WalkOptions, walk_bucket

    plans = bucket.documents.plans
    name = (bucket.number, int(options.key), options.short_seq_prob, options.metadata.objective, options.min_tokens)
    if name not in plans:
        walk_options = WalkOptions(
            pass_key=options.key[()],
            short_seq_prob=options.short_seq_prob,
            longest=_longest(options),
            has_random=options.metadata.objective == "nsp",
            min_tokens=options.min_tokens,
            has_whole_words=tokenizer.kind.has_short_words,
            is_paired=options.holds_ids,
        )
        words = _words(bucket, tokenizer)
        room = len(words.tokens) // 2  # a side has a token at least; memory that is not written to is not taken
        a_start, a_end, b_start, b_end = np.empty((4, room), np.int64)
        pairs = Pairs(a_start, a_end, b_start, b_end, np.empty(room, np.uint8), np.empty(room, np.uint64))
        planned = walk_bucket(bucket.starts_S, bucket.document_starts, bucket.document_keys, words, walk_options, pairs)
        while len(plans) >= KEPT_PLANS:
            del plans[next(iter(plans))]  # the oldest
        plans[name] = pairs.take(slice(planned))
        _deal_labels(plans[name], _longest(options))
    plan: Pairs = plans[name]
    return plan


def _deal_labels(pairs: Pairs, longest: int) -> None:
    """Give half of the pairs the label 1, at each length.

    Pairs are sorted by the length that they will have, equal ones at random. Of each two neighbours one has label 1, by
    a coin.
    """
    length = np.minimum(pairs.a_length + pairs.b_length, longest)
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


def _exchange_seconds(bucket: DocumentBucket, options: PairOptions, pairs: Pairs, tokenizer: Tokenizer) -> None:
    """Have the pairs whose label is 1, of this bucket and of its partners, exchange their Bs."""
    from data_prep.instances.balanced_loops import move_ends
    from data_prep.instances.pair_walk_loops import LONGEST_WORD

    # All pairs with label 1 of this bucket and its partners, and the text that each is from.
    parts, texts, borders, partners = [], [], [], partner_buckets(bucket, options)
    for number in partners:
        partner = DocumentBucket(bucket.documents, number)
        plan = _plan(partner, options, tokenizer)
        parts.append(plan.take(np.flatnonzero(plan.label == 1)))
        texts.append(bucket.documents.read(number).hashes_D[partner.document_of(parts[-1].a_start)])
        borders.append(_borders_of_seconds(partner, parts[-1]))
    everyone, first = Pairs.join(parts), sum(part.size for part in parts[: partners.index(bucket.number)])

    # One number for where a B begins and ends and how long it is, so that neighbours in its order are alike in all.
    # Lengths ascend and descend in turn: with lengths of 0 to 9 (apart = 10), a B that is a document's end has 0 up to
    # 9; a B that ends with another sentence, 10 (length 9) up to 19 (length 0). Where two stretches meet, lengths are
    # the same.
    border, length = np.concatenate(borders), everyone.b_length
    apart = int(length.max(initial=0)) + 1
    values = border * apart + np.where(border % 2 == 1, apart - 1 - length, length)

    takes = _takes(values, np.concatenate(texts), everyone.key, options)
    rows = np.flatnonzero(pairs.label == 1)
    if takes is None:  # no pair of another text in the whole split: B stays, and the label says so
        pairs.label[rows] = 0
        return
    own = slice(first, first + len(rows))
    pairs.b_start[rows], pairs.b_end[rows] = everyone.b_start[takes[own]], everyone.b_end[takes[own]]
    # Nearly every B is as long as the B before it. Elsewhere, and if it does not fit, its end is moved: to
    # where a true pair of its target would end, of which most have the full length.
    longest, first_length = _longest(options), everyone.a_length[own]
    taken, planned = length[takes[own]], first_length + length[own]
    wanted = np.where(planned > longest - LONGEST_WORD, longest, planned) - first_length
    is_cut = (border[own] == 2) | (border[own] == 3)
    unfit = np.flatnonzero((is_cut & (taken != length[own])) | (first_length + taken > longest))
    for number, part in bucket.documents.by_bucket(pairs.b_start[rows[unfit]], bucket.documents.first_tokens):
        partner, moved = DocumentBucket(bucket.documents, number), rows[unfit[part]]
        ends = partner.starts_S[partner.document_starts[partner.document_of(pairs.b_start[moved]) + 1]]
        move_ends(pairs, moved, wanted[unfit[part]], ends, _words(partner, tokenizer))


def _borders_of_seconds(bucket: DocumentBucket, pairs: Pairs) -> Integers:
    """Return a number for how each B ends: with its document (0), another sentence (1), inside one (2).

    A B that begins inside a sentence has 5, 4, 3.
    """
    sentences = bucket.starts_S
    documents = sentences[bucket.document_starts]
    begins, ends, is_last = (
        starts[np.searchsorted(starts, places)] == places
        for starts, places in ((sentences, pairs.b_start), (sentences, pairs.b_end), (documents, pairs.b_end))
    )
    border = np.where(is_last, 0, np.where(ends, 1, 2))
    return np.where(begins, border, 5 - border)


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
