from itertools import pairwise, product

import numpy as np
import pytest
from support.soak import in_soak
from unit.data_prep.conftest import bundled, pair_options, write_split
from unit.data_prep.instances.google_oracle import sample_built, sample_oracle, z_scores

from data_prep.instances.draws import CANDIDATE, IS_RANDOM, SHORT, SPLIT_POINT, START, TARGET, TRUNCATE
from data_prep.instances.google import heads, pair_google
from data_prep.instances.pairs import DocumentBucket
from megabert.foundation.randomness.keyed import below, mix, uniform


def draw(key, *words):
    return mix(np.array([key]), *words)


def google_pairs(bucket, options):
    """The original's walk in plain Python, with the keyed draws: starts and lengths of A and B, and the label."""
    starts, keys, pairs = bucket.starts_S, bucket.keys_S(options), []
    bounds, room = bucket.document_starts, options.metadata.max_seq_length - 3

    def reach(first, end, tokens):
        """Return where sentences from the first on end that have these tokens, one at least."""
        return next((s for s in range(first + 1, end) if starts[s] - starts[first] >= tokens), end)

    for own, (sentence, end) in enumerate(pairwise(bounds)):
        key, target = draw(options.key, bucket.document_keys[own])[0], room
        if uniform(draw(key, SHORT)) < options.short_seq_prob:
            target = 2 + int(below(draw(key, TARGET), room - 1)[0])
        while sentence < end:
            key, stop = keys[sentence], reach(sentence, end, target)
            is_alone = stop == sentence + 1
            middle = stop if is_alone else sentence + 1 + int(below(draw(key, SPLIT_POINT), stop - sentence - 1)[0])
            b, b_stop, is_random = middle, stop, is_alone or uniform(draw(key, IS_RANDOM))[0] < 0.5
            if is_random:
                others = (int(below(draw(key, CANDIDATE, attempt), len(bounds) - 1)[0]) for attempt in range(9))
                tenth = int(below(draw(key, CANDIDATE, 9), len(bounds) - 1)[0])
                other = next((number for number in others if number != own), tenth)
                first, last = bounds[other], bounds[other + 1]
                b = first + int(below(draw(key, START), last - first)[0])
                b_stop = reach(b, last, target - (starts[middle] - starts[sentence]))
            sides = [[starts[sentence], starts[middle]], [starts[b], starts[b_stop]]]
            lengths = [stop - start for start, stop in sides]
            while sum(lengths) > room:
                lengths[int(lengths[0] <= lengths[1])] -= 1  # of equal sides, B
            for number, (side, length) in enumerate(zip(sides, lengths, strict=True)):
                excess = side[1] - side[0] - length
                side[0] += heads(draw(key, TRUNCATE, number), np.array([excess]))[0]
            pairs.append((sides[0][0], lengths[0], sides[1][0], lengths[1], is_random))
            sentence = middle if is_random else stop
    return pairs


@pytest.mark.parametrize(("documents", "passes"), [(1, 3), (2, 100), (40, 3)])
def test_pairs_are_those_of_the_originals_walk(documents, passes, tmp_path):
    """With one document the tenth draw of another one is itself, and is labelled random all the same."""
    lengths = [np.random.default_rng(seed).integers(1, 30, 40) for seed in range(documents)]
    bucket = DocumentBucket(write_split(tmp_path, [lengths]), 0)
    for pass_number in range(passes):
        options = pair_options(64, pairing="google", pass_number=pass_number)
        made = pair_google(bucket, options)
        rows = zip(made.a_start, made.a_length, made.b_start, made.b_length, made.label, strict=True)
        assert [*map(tuple, rows)] == google_pairs(bucket, options)


@pytest.mark.parametrize(("name", "length"), in_soak(*product(("public_domain", "korean"), (128, 512))))
def test_walk_has_the_oracles_distribution(name, length, build):
    folder = build(**bundled(name, lengths=(length,), dupe_factor=1)).folder / "documents"
    scores = z_scores(sample_oracle(folder, length, 60), sample_built(folder, length, 60), resamples=2000)
    assert max(map(abs, scores.values())) < 4, scores


def test_comparison_sees_a_wrong_share(built):
    """Negative control: a target of another length is noticed at once."""
    folder = built.folder / "documents"
    scores = z_scores(sample_oracle(folder, 128, 4), sample_built(folder, 124, 4))
    assert max(map(abs, scores.values())) > 6, scores


def test_heads_are_binomial():
    tosses = np.repeat([0, 1, 63, 64, 65, 300], 4000)
    found = heads(mix(np.arange(len(tosses)), 9), tosses)
    assert (found <= tosses).all()
    for number in (1, 63, 64, 65, 300):
        part = found[tosses == number]
        assert abs(part.mean() - number / 2) < 4 * np.sqrt(number / 4 / len(part))
        assert abs(part.var() / (number / 4) - 1) < 0.1
