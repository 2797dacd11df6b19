"""A slow, literal form of google-research/bert's instance generation, and its comparison with the fast form.

Draws come from one ``random.Random`` in the published order, so the output for a seed is that of the original
script for the same tokens. Documents are lists of segments (sentences), segments lists of ids.
"""

import random
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from unit.data_prep.conftest import WholeSplit, pair_options

from data_prep.documents.document_set import DocumentSet
from data_prep.instances.google import pair_google
from data_prep.instances.pairs import DocumentBucket
from megabert.tokens.masking import MaskingOptions, count_predictions

Segments = list[list[int]]


@dataclass(frozen=True)
class OracleInstance:
    document: int
    tokens: list[int]
    b_start: int
    is_random: bool
    positions: list[int]
    originals: list[int]


@dataclass(frozen=True)
class OracleOptions:
    max_seq_length: int
    short_seq_prob: float = 0.1
    masked_lm_prob: float = 0.15
    max_predictions: int = 20
    vocab_size: int = 30_522
    cls: int = 2
    sep: int = 3
    mask: int = 4


def create_instances(documents: list[Segments], passes: int, seed: int, options: OracleOptions) -> list[OracleInstance]:
    """All passes over all documents, shuffled at the end; ``document`` is the index before the first shuffle."""
    rng = random.Random(seed)
    order = list(range(len(documents)))
    rng.shuffle(order)
    shuffled = [documents[index] for index in order]
    instances = []
    for _ in range(passes):
        for place in range(len(shuffled)):
            instances += _from_document(shuffled, place, order[place], rng, options)
    rng.shuffle(instances)
    return instances


def _from_document(documents, place, name, rng, options):
    room = options.max_seq_length - 3
    target = room
    if rng.random() < options.short_seq_prob:
        target = rng.randint(2, room)
    segments, instances, chunk, i = documents[place], [], [], 0
    while i < len(segments):
        chunk.append(segments[i])
        if i == len(segments) - 1 or sum(map(len, chunk)) >= target:
            a_end = rng.randint(1, len(chunk) - 1) if len(chunk) >= 2 else 1
            a = [token for segment in chunk[:a_end] for token in segment]
            is_random = len(chunk) == 1 or rng.random() < 0.5
            if is_random:
                b = _random_segments(documents, place, target - len(a), rng)
                i -= len(chunk) - a_end
            else:
                b = [token for segment in chunk[a_end:] for token in segment]
            _truncate(a, b, room, rng)
            instances.append(_finish(name, a, b, is_random, rng, options))
            chunk = []
        i += 1
    return instances


def _random_segments(documents, place, wanted, rng):
    for _ in range(10):
        other = rng.randint(0, len(documents) - 1)
        if other != place:
            break
    segments, b = documents[other], []
    for segment in segments[rng.randint(0, len(segments) - 1) :]:
        b += segment
        if len(b) >= wanted:
            break
    return b


def _truncate(a, b, room, rng):
    while len(a) + len(b) > room:
        longer = a if len(a) > len(b) else b
        if rng.random() < 0.5:
            del longer[0]
        else:
            longer.pop()


def _finish(name, a, b, is_random, rng, options):
    tokens = [options.cls, *a, options.sep, *b, options.sep]
    candidates = [i for i, token in enumerate(tokens) if token not in (options.cls, options.sep)]
    rng.shuffle(candidates)
    wanted = min(options.max_predictions, max(1, int(round(len(tokens) * options.masked_lm_prob))))  # noqa: RUF046
    masked = {}
    for position in candidates[:wanted]:
        if rng.random() < 0.8:
            shown = options.mask
        elif rng.random() < 0.5:
            shown = tokens[position]
        else:
            shown = rng.randint(0, options.vocab_size - 1)
        masked[position] = (tokens[position], shown)
    positions = sorted(masked)
    originals = [masked[position][0] for position in positions]
    for position in positions:
        tokens[position] = masked[position][1]
    return OracleInstance(name, tokens, len(a) + 2, is_random, positions, originals)


NAMES = ["instances", "random", "tokens", "full", "a_tokens", "random_tokens", "short", "one_token_sides"]
NAMES += ["predictions"]
# Ratios of the statistics above that are compared: share of random next, mean length, ...
RATIOS = [("random", "instances"), ("tokens", "instances"), ("full", "instances"), ("a_tokens", "tokens"),
          ("random_tokens", "random"), ("short", "instances"), ("one_token_sides", "instances"),
          ("predictions", "instances"), ("predictions", "tokens")]  # fmt: skip


def statistics(document, a, b, is_random, length, count):
    """Sums by document, shape (documents, statistics)."""
    total = a + b + 3
    predictions = count_predictions(total, MaskingOptions(max_predictions_per_seq=20 if length == 128 else 80))
    values = [np.ones(len(a)), is_random, total, total == length, a, total * is_random, total < length // 2,
              (a == 1) | (b == 1), np.minimum(predictions, a + b)]  # fmt: skip
    return np.stack([np.bincount(document, weights=value, minlength=count) for value in values], axis=1)


def sample_built(folder: Path, length, passes, seed=5):
    documents = DocumentSet.open(folder, "train", 2000)
    total = np.zeros((documents.num_documents, len(NAMES)))
    for pass_number in range(passes):
        options = pair_options(length, pairing="google", seed=seed, pass_number=pass_number)
        for number in range(len(documents.bucket_starts) - 1):
            pairs = pair_google(DocumentBucket(documents, number), options)
            document = documents.document_of_token(pairs.a_start)
            total += statistics(
                document, pairs.a_length, pairs.b_length, pairs.label == 1, length, documents.num_documents
            )
    return total


def sample_oracle(folder: Path, length, passes, seed=6):
    segments = segments_of(folder)
    options = OracleOptions(length, max_predictions=20 if length == 128 else 80)
    instances = create_instances(segments, passes, seed, options)
    rows = [
        (i.document, i.b_start - 2, len(i.tokens) - i.b_start - 1, i.is_random, len(i.positions)) for i in instances
    ]
    document, a, b, is_random, predictions = np.array(rows).T
    total = statistics(document, a, b, is_random == 1, length, len(segments))
    by_count = np.bincount(document, weights=predictions, minlength=len(segments))
    assert np.array_equal(by_count, total[:, NAMES.index("predictions")])
    return total


def segments_of(folder: Path):
    documents = DocumentSet.open(folder, "train", 2000)
    whole = WholeSplit.of(documents)
    starts = whole.tokens_of_sentences
    tokens: list[int] = []
    for bucket in range(len(documents.bucket_starts) - 1):
        tokens += documents.read(bucket).ids_T.tolist()
    return [
        [tokens[starts[s] : starts[s + 1]] for s in range(first, end)]
        for first, end in pairwise(whole.sentences_of_documents)
    ]


def z_scores(left, right, resamples=400):
    """How far each ratio differs, in standard deviations found by resampling documents.

    Passes over one document share its length and, in google's form, a target, so documents are what is independent;
    the same documents are drawn for both sides, whose differences are then of the draws alone.
    """
    rng = np.random.default_rng(1)
    picks = rng.integers(0, len(left), (resamples, len(left)))
    weights = np.stack([np.bincount(pick, minlength=len(left)) for pick in picks])
    weights = np.concatenate([np.ones((1, len(left))), weights])

    def ratios(sums):
        totals = weights @ sums
        found = [totals[:, NAMES.index(top)] / totals[:, NAMES.index(bottom)] for top, bottom in RATIOS]
        return np.stack([*found, totals[:, 0] / weights.sum(1)], axis=1)

    difference = ratios(left) - ratios(right)
    spread = difference[1:].std(0)
    return dict(zip([*(f"{top}/{bottom}" for top, bottom in RATIOS), "instances/document"],
                    difference[0] / np.maximum(spread, 1e-12), strict=True))  # fmt: skip
