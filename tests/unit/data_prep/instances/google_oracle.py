"""A slow, literal form of google-research/bert's instance generation, for comparison only.

Draws come from one ``random.Random`` in the published order, so the output for a seed is that of the original
script for the same tokens. Documents are lists of segments (sentences), segments lists of ids.
"""

import random
from dataclasses import dataclass

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
