import numpy as np
import pytest
from unit.data_prep.conftest import WholeSplit, pair_options

from data_prep.checks.verify import untrue_pairs
from data_prep.documents.document_set import DocumentSet, tokenizer_of
from data_prep.instances import balanced
from data_prep.instances.balanced import pair_balanced
from data_prep.instances.balanced_loops import exchange_alike, move_ends, part_alike
from data_prep.instances.pair_walk_loops import WalkOptions, Words, excess_by_side, walk_bucket
from data_prep.instances.pairs import DocumentBucket, Pairs, in_order, make_pairs
from megabert.foundation.randomness.keyed import mix

PASSES = 6


def pairs_of(built, length, *, objective="nsp", passes=PASSES, split="train"):
    """Pairs of several passes over all buckets, with the document set."""
    documents = DocumentSet.open(built.folder / "documents", split, 2000)
    tokenizer, found = tokenizer_of(built.folder / "tokenizer"), []
    for pass_number in range(passes):
        options = pair_options(length, objective=objective, seed=3, pass_number=pass_number)
        for number in range(len(documents.bucket_starts) - 1):
            found.append(pair_balanced(DocumentBucket(documents, number), options, tokenizer))
    return documents, found


def join(found, name):
    return np.concatenate([getattr(pairs, name) for pairs in found])


@pytest.mark.parametrize("length", [64, 128, 512])
def test_labels_are_even_and_do_not_show_in_length(built, length):
    _, found = pairs_of(built, length, passes=12)
    label = join(found, "label")
    total = join(found, "a_length") + join(found, "b_length") + 3
    assert abs(label.mean() - 0.5) < 0.005
    # At 512 a pass has 400 pairs here, and the next B of a kind may be ten tokens longer than there is room.
    assert abs(total[label == 1].mean() - total[label == 0].mean()) < 0.005 * length
    assert total.max() == length


def test_random_second_comes_from_the_whole_split(built):
    """Most documents give a random B in a few passes, in other buckets too."""
    documents, found = pairs_of(built, 64)
    b_start, label, own = join(found, "b_start"), join(found, "label"), join(found, "a_start")
    assert len(np.unique(documents.document_of_token(b_start[label == 1]))) > 0.9 * documents.num_documents
    buckets = [np.searchsorted(documents.bucket_starts[:, 2], x[label == 1], side="right") for x in (b_start, own)]
    assert np.mean(buckets[0] != buckets[1]) > 0.5


def test_random_second_begins_and_ends_where_true_ones_do(built):
    """Seen alone, nothing shows that B is random: whole or cut, early or late in its document, at its end or not."""
    documents, found = pairs_of(built, 64, passes=12)
    label, start, length = (join(found, name) for name in ("label", "b_start", "b_length"))
    document, whole = documents.document_of_token(start), WholeSplit.of(documents)
    first, last = (whole.tokens_of_documents[document + step] for step in (0, 1))
    assert (start > first).all()
    begins_whole = np.isin(start, whole.tokens_of_sentences)
    sentences = np.diff(
        [np.searchsorted(whole.tokens_of_sentences, place) for place in (start, start + length)], axis=0
    )
    is_whole = np.isin(start + length, whole.tokens_of_sentences)
    # A and B of a true pair meet, at a border of sentences or inside one: a random B fits its A in this as well.
    a_ends_whole = np.isin(join(found, "a_start") + join(found, "a_length"), whole.tokens_of_sentences)
    assert np.mean((a_ends_whole == begins_whole)[label == 1]) > 0.95
    for seen in (begins_whole, is_whole, start + length == last, sentences[0], (start - first) / (last - first)):
        random, true = seen[label == 1], seen[label == 0]
        spread = np.sqrt(random.var() / len(random) + true.var() / len(true))
        assert abs(random.mean() - true.mean()) < 5 * spread


def test_random_second_changes_no_length(built, monkeypatch):
    """Nearly every instance is exactly as long as its true B would have made it, and so is each of its sides."""
    _, found = pairs_of(built, 128)
    monkeypatch.setattr(balanced, "_exchange_seconds", lambda *_: None)
    _, as_planned = pairs_of(built, 128)
    assert np.array_equal(join(found, "key"), join(as_planned, "key"))
    for name in ("a_length", "b_length"):
        difference = join(found, name) - join(as_planned, name)
        assert np.mean(difference == 0) > 0.9
        assert abs(difference.mean()) < 0.1
    is_random = join(found, "label") == 1
    assert (join(found, "b_start") != join(as_planned, "b_start"))[is_random].all()


@pytest.mark.parametrize("buckets", [1, 3])
def test_copies_of_a_text_are_no_random_second(buckets, build, texts):
    own = build(texts=texts[:8] * 4, lengths=(64,), buckets=buckets, validation_share=0)
    documents, found = pairs_of(own, 64, passes=3)
    hashes = np.concatenate([documents.read(number).hashes_D for number in range(buckets)])
    assert len(hashes) == 32
    assert len(np.unique(hashes)) == 8
    a, b = (hashes[documents.document_of_token(join(found, side))] for side in ("a_start", "b_start"))
    label = join(found, "label")
    assert 0.4 < label.mean() < 0.6
    assert np.array_equal(a != b, label == 1)


def test_pairs_of_a_single_text_are_all_true(build, texts):
    own = build(texts=texts[:1] * 2, lengths=(64,), validation_share=0)
    documents, found = pairs_of(own, 64)
    assert not join(found, "label").any()
    assert not any(bad.any() for bad in untrue_pairs(documents, found[0], own.manifests[64].metadata).values())


def test_targets_are_drawn_per_instance(built):
    _, found = pairs_of(built, 128)
    total = join(found, "a_length") + join(found, "b_length")
    assert 0.03 < np.mean(total < 60) < 0.12  # 10% are short, evenly from 2; few are tails of documents


@pytest.mark.parametrize("length", [64, 128])
def test_neither_cuts_nor_lengths_tell_the_order(built, length):
    """A table of answers for what each pair looks like, learned on half of the documents, is of no use on the rest."""
    documents, found = pairs_of(built, length, objective="sop", passes=30)
    sides = (in_order(pairs, "sop") for pairs in found)
    first, first_length, second, second_length = map(np.concatenate, zip(*sides, strict=True))
    edges = (first, first + first_length, second, second + second_length)
    sentences = WholeSplit.of(documents).tokens_of_sentences
    is_whole = sum(np.isin(edge, sentences) << place for place, edge in enumerate(edges))
    difference = first_length - second_length
    is_held_out = documents.document_of_token(first) % 2 == 1
    for cue in (is_whole, np.clip(difference, -4, 4), difference // 8, first_length // 8):
        hits = held_out_hits(cue, join(found, "label"), is_held_out)
        assert abs(hits.mean() - 0.5) < 5 * 0.5 / np.sqrt(len(hits))


def held_out_hits(cue, label, is_held_out):
    """Return for each held-out pair whether its label is the commoner one of its cue among the others."""
    _, cue = np.unique(cue, return_inverse=True)
    votes = np.bincount(cue[~is_held_out], 2.0 * label[~is_held_out] - 1, cue.max() + 1)
    return (votes[cue] > 0)[is_held_out] == label[is_held_out]


def test_passes_differ_and_repeat(built):
    documents = DocumentSet.open(built.folder / "documents", "train", 2000)
    first, again, other = (
        make_pairs(documents, 0, pair_options(64, seed=3, pass_number=number), built.folder / "tokenizer").b_start
        for number in (0, 0, 1)
    )
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_closed_form_of_truncation_equals_the_loop():
    rng = np.random.default_rng(0)
    a, b, limit = rng.integers(1, 40, 3000), rng.integers(1, 40, 3000), rng.integers(2, 40, 3000)
    from_a, from_b = excess_by_side(a, b, limit)
    for row in range(len(a)):
        sides = [a[row], b[row]]
        while sum(sides) > limit[row]:
            sides[0 if sides[0] > sides[1] else 1] -= 1
        assert [a[row] - from_a[row], b[row] - from_b[row]] == sides


@pytest.mark.parametrize(
    ("wanted", "starts", "expected"),
    [
        (4, [31, 34], 34),  # shorter, to the start of a word
        (4, [31], 31),
        (4, [], 34),  # a text without spaces is parted anywhere
        (12, [40], 40),  # longer
        (99, [40], 50),  # as far as the document goes
    ],
)
def test_second_side_moves_its_end_to_the_start_of_a_word(wanted, starts, expected):
    tokens = np.ones(60, np.int64)
    tokens[starts] = 0
    ends = {"a_start": 5, "a_end": 25, "b_start": 30, "b_end": 38}
    pairs = Pairs(*(np.array([ends.get(name, 0)]) for name in Pairs._fields))
    move_ends(pairs, *np.array([[0], [wanted], [50]]), Words(tokens, 0, np.array([False, True])))
    assert [pairs.a_start[0], pairs.a_end[0], pairs.b_start[0], pairs.b_end[0]] == [5, 25, 30, expected]


@pytest.mark.parametrize("texts", [2, 3, 9])
def test_exchange_gives_each_item_to_one_of_another_text(texts):
    rng = np.random.default_rng(0)
    for size in range(2, 60):
        values, text = np.sort(rng.integers(0, 12, size)), rng.integers(0, texts, size)
        if 2 * np.bincount(text).max() > size:
            continue
        ends = part_alike(values, text, texts)
        begins = np.concatenate([[0], ends[:-1]])
        assert ends[-1] == size
        for begin, end in zip(begins, ends, strict=True):
            assert 2 * np.bincount(text[begin:end]).max() <= end - begin
            text[begin:end].sort()
        takes = exchange_alike(ends, text, mix(7, np.arange(size)))
        assert (text[takes] != text).all()
        assert np.array_equal(np.sort(takes), np.arange(size))
        assert np.array_equal(*(np.searchsorted(ends, items, side="right") for items in (takes, np.arange(size))))


@pytest.mark.parametrize(("objective", "share"), [("nsp", 0.99), ("sop", 0.8)])
@pytest.mark.parametrize("length", [128, 512])
def test_all_text_is_used_once_in_a_pass(built, length, objective, share):
    """So a model that remembers where it has seen a text before learns nothing of the label by it."""
    documents, found = pairs_of(built, length, objective=objective, passes=1)
    used = np.zeros(documents.first_tokens[-1] + 1, np.int64)
    for side in "ab":
        start, size = join(found, f"{side}_start"), join(found, f"{side}_length")
        np.add.at(used, start, 1)
        np.add.at(used, start + size, -1)
    used = np.cumsum(used)[:-1]
    assert np.mean(used > 1) < 0.005  # where a B is longer than the next one of its kind
    assert used.clip(max=1).mean() > share
    assert Pairs.join(found).count_text(with_random=True) == np.count_nonzero(used)


@pytest.mark.parametrize("has_whole_words", [True, False])
@pytest.mark.parametrize("longest", [13, 125])
def test_walk_takes_all_tokens_and_cuts_between_words(longest, has_whole_words):
    """Sentences of any length, words of one to three pieces and one of 30 among a hundred; only such are cut."""
    rng = np.random.default_rng(0)
    words = np.where(rng.random(20_000) < 0.01, 30, rng.integers(1, 4, 20_000))
    ends = np.cumsum(words)
    is_subword = ~np.isin(np.arange(ends[-1]), ends - words)
    last_words = np.cumsum(rng.geometric(0.05, 2000))
    sentences = np.concatenate([[0], ends[last_words[last_words < len(ends)]]])
    documents = np.unique(np.append(np.arange(0, len(sentences) - 1, 12), len(sentences) - 1))
    room = np.empty((4, sentences[-1] // 2), np.int64)
    pairs = Pairs(*room, np.empty(len(room[0]), np.uint8), np.empty(len(room[0]), np.uint64))
    options = WalkOptions(np.uint64(5), 0.1, longest, True, 0, has_whole_words, False)
    keys, first = np.arange(len(documents) - 1).astype(np.uint64), 1000
    text = Words(is_subword.astype(np.uint16), first, np.array([False, True]))
    pairs = pairs.take(slice(walk_bucket(sentences + first, documents, keys, text, options, pairs)))
    assert (pairs.a_end == pairs.b_start).all()
    assert (pairs.a_start[1:] >= pairs.b_end[:-1]).all()
    total = pairs.a_length + pairs.b_length
    assert total.max() <= longest
    starts = np.concatenate([pairs.a_start, pairs.b_start]) - first
    assert pairs.a_length.min() > 0
    assert pairs.b_length.min() > 0
    if has_whole_words:
        assert not is_subword[starts].any()
        assert total.sum() > (0.99 if longest > 30 else 0.8) * sentences[-1]
    else:
        assert total.sum() > 0.999 * sentences[-1]
        place = np.searchsorted(ends, starts, side="right")
        assert np.mean(is_subword[starts] & (words[place] < 30)) < 0.02  # in pairs that want two or three tokens
    # A pair that could have had a sentence boundary between its sides has one.
    could = np.searchsorted(sentences + first, pairs.b_end) > np.searchsorted(sentences + first, pairs.a_start, "right")
    assert np.isin(pairs.b_start - first, sentences)[could].all()


def test_common_text_takes_from_the_others_evenly(build, texts):
    """One text of four times the others' length: no label is lost, and Bs repeat no more than that asks for."""
    own = build(texts=["\n".join(texts[:24]), *texts[24:30]], lengths=(64,), buckets=1, validation_share=0)
    documents, found = pairs_of(own, 64, passes=4)
    assert abs(join(found, "label").mean() - 0.5) < 0.01
    for pairs in found:
        assert not any(bad.any() for bad in untrue_pairs(documents, pairs, own.manifests[64].metadata).values())
        counts = np.unique(pairs.b_start[pairs.label == 1], return_counts=True)[1]
        common = documents.document_of_token(pairs.a_start[pairs.label == 1])
        most, rest = np.bincount(common).max(), (pairs.label == 1).sum() - np.bincount(common).max()
        assert most > 2 * rest
        assert counts.max() <= -(-most // rest)


def test_labels_are_even_at_each_length(built):
    documents, options = DocumentSet.open(built.folder / "documents", "train", 2000), pair_options(128)
    tokenizer = tokenizer_of(built.folder / "tokenizer")
    for number in range(documents.num_buckets):
        plan = balanced._plan(DocumentBucket(documents, number), options, tokenizer)
        length = plan.b_end - plan.a_start
        signs = 2 * plan.label.astype(int) - 1
        assert all(abs(signs[length <= most].sum()) <= 1 for most in range(128))
        assert abs(np.mean(signs[1:] * signs[:-1])) < 4 / np.sqrt(len(signs))  # neighbours do not show each other's


def test_label_does_not_show_in_length_of_short_documents(build, texts):
    """Documents of 2 to 12 sentences: most instances are ends of documents."""
    rng = np.random.default_rng(0)
    paragraphs = [line for text in texts for line in text.splitlines() if line.count(". ") > 1]
    short = ["\n".join(paragraphs[place : place + rng.integers(1, 5)]) for place in range(len(paragraphs))]
    _, found = pairs_of(build(texts=short, lengths=(256,), dupe_factor=1), 256, passes=30)
    label = join(found, "label")
    total = join(found, "a_length") + join(found, "b_length")
    assert abs(label.mean() - 0.5) < 0.005
    assert abs(total[label == 1].mean() - total[label == 0].mean()) < 1
