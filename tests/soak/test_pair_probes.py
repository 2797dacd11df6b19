"""Boosted trees that try to read the label of a pair from one side, or from what both sides look like.

A probe sees no word but the first and the last of a side. It is fitted on one half of the documents and scored on the
other, then the other way round; labels count alike, so 0.5 is chance whatever their share. ``MEGABERT_PROBE_CORPORA``
names a folder of JSON Lines files to build from in addition to the bundled corpora.
"""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import balanced_accuracy_score
from unit.data_prep.conftest import WholeSplit

from data_prep.config.build import BuildConfig, SourceConfig
from data_prep.documents.document_set import DocumentSet, tokenizer_of
from data_prep.execution.executors import Executor
from data_prep.instances.pairs import PairOptions, make_pairs
from data_prep.pipeline import build_shards
from megabert.tokens.shards.folder import read_manifest

BUNDLED = Path(__file__).parents[2] / "examples" / "corpus"
FOLDER = os.environ.get("MEGABERT_PROBE_CORPORA")
CORPORA = [BUNDLED / f"{name}.jsonl" for name in ("public_domain", "korean")]
CORPORA += sorted(Path(FOLDER or os.devnull).glob("*.jsonl"))
ROWS = 30_000  # which decide the number of passes over the documents
COMMON = 100  # pieces that are told apart as the first or last of a side
STOPS = ".!?"
# Scores that mean nothing lie around 0.5 with a deviation of 0.003 to 0.005: instances of several passes share text.
BAR = 0.52

pytestmark = pytest.mark.soak


class Text:
    """All tokens of a split, and what is looked up in them."""

    def __init__(self, folder: Path):
        self.documents = DocumentSet.open(folder / "documents", "train", tokenizer_of(folder / "tokenizer").vocab_size)
        self.whole = WholeSplit.of(self.documents)
        self.sentences = self.whole.tokens_of_sentences
        buckets = range(len(self.documents.bucket_starts) - 1)
        self.ids = np.concatenate([self.documents.read(bucket).ids_T for bucket in buckets]).astype(np.int64)
        tokenizer = tokenizer_of(folder / "tokenizer")
        pieces = sorted(tokenizer.vocab, key=tokenizer.vocab.__getitem__)
        self.common = np.argsort(np.argsort(-np.bincount(self.ids, minlength=len(pieces)), kind="stable"))
        kinds = {
            "stops": np.array([piece in STOPS for piece in pieces]),
            "punctuation": np.array([not any(map(str.isalnum, piece)) for piece in pieces]),
            "subwords": np.asarray(tokenizer.is_subword),
            "rarity": np.log1p(self.common),
        }
        self.sums = {name: np.concatenate([[0], np.cumsum(kind[self.ids])]) for name, kind in kinds.items()}

    def side(self, start, length):
        """What can be seen of one side, by the name of the probe that sees it."""
        end = start + length
        document = self.documents.document_of_token(start)
        first, last = (self.whole.tokens_of_documents[document + step] for step in (0, 1))
        inside = np.searchsorted(self.sentences, end) - np.searchsorted(self.sentences, start, side="right")
        counts = [self.sums[name][end] - self.sums[name][start] for name in self.sums]
        return {
            "length": [length],
            "ends cut": [np.isin(start, self.sentences), np.isin(end, self.sentences)],
            "sentences, stops": [inside, *counts, inside / length, *(count / length for count in counts)],
            "end tokens": [np.minimum(self.common[self.ids[place]], COMMON) for place in (start, end - 1)],
            "place": [start == first, end == last, (start - first) / (last - first), last - end],
        }, document


def pairs_of(folder: Path, length: int, pairing: str, least: int = ROWS):
    """Pairs as columns, with the text, of the passes that are needed for ``ROWS`` of them."""
    metadata = replace(read_manifest(folder / "instances" / str(length)).metadata, pairing=pairing)
    text = Text(folder)
    columns, rows, pass_number = [], 0, 0
    while rows < least:
        options = PairOptions(metadata=metadata, short_seq_prob=0.1, pass_number=pass_number)
        for bucket in range(len(text.documents.bucket_starts) - 1):
            pairs = make_pairs(text.documents, bucket, options, folder / "tokenizer")
            columns.append((pairs.a_start, pairs.a_length, pairs.b_start, pairs.b_length, pairs.label))
            rows += pairs.size
        pass_number += 1
    return text, [np.concatenate(column) for column in zip(*columns, strict=True)]


def probe(features, label, half, is_category=None):
    """Share of right labels, both counted alike, on the half of the documents that was not fitted."""
    features, scores = np.column_stack(features).astype(np.float64), []
    for fitted in (0, 1):
        trees = HistGradientBoostingClassifier(
            max_iter=60, class_weight="balanced", categorical_features=is_category, random_state=0
        )
        trees.fit(features[half == fitted], label[half == fitted])
        rest = (half >= 0) & (half != fitted)
        scores.append(balanced_accuracy_score(label[rest], trees.predict(features[rest])))
    return float(np.mean(scores))


def probes(folder: Path, length: int, pairing: str) -> dict[str, float]:
    """All probes' scores by name."""
    text, (a_start, a_length, b_start, b_length, label) = pairs_of(folder, length, pairing)
    sides, documents = zip(text.side(a_start, a_length), text.side(b_start, b_length), strict=True)
    halves = [(document * 2654435761 >> 16) & 1 for document in documents]
    result = {}
    for name, side, half in (("A", sides[0], halves[0]), ("B", sides[1], halves[1])):
        for what, features in side.items():
            is_category = [True] * len(features) if what == "end tokens" else None
            result[f"{name}: {what}"] = probe(features, label, half, is_category)
        every = [feature for features in side.values() for feature in features]
        kinds = [what == "end tokens" for what, features in side.items() for _ in features]
        result[f"{name}: all of these"] = probe(every, label, half, kinds)
    both = np.where(halves[0] == halves[1], halves[0], -1)
    lengths = [a_length, b_length, a_length + b_length]
    result["A and B: lengths"] = probe(lengths, label, both)
    cuts = [*sides[0]["ends cut"], *sides[1]["ends cut"]]
    result["A and B: lengths, ends cut"] = probe(lengths + cuts, label, both)
    counts = [*sides[0]["sentences, stops"], *sides[1]["sentences, stops"]]
    result["A and B: sentences, stops"] = probe(lengths + counts, label, both)
    result["label 1"], result["rows"] = float(label.mean()), len(label)
    return result


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Builds of each corpus, made when they are first asked for."""
    folders = {}

    def folder_of(corpus):
        if corpus not in folders:
            config = BuildConfig(
                sources=(SourceConfig(input=str(corpus)),), language="ko" if corpus.stem == "korean" else "en",
                vocab_size=8192, validation_share=0, dupe_factor=1,
            )  # fmt: skip
            folders[corpus] = build_shards(config, tmp_path_factory.mktemp(corpus.stem) / "out", Executor()).folder
        return folders[corpus]

    return folder_of


@pytest.mark.parametrize("pairing", ["balanced", "google"])
@pytest.mark.parametrize("length", [128, 512])
@pytest.mark.parametrize("corpus", CORPORA, ids=lambda path: path.stem)
def test_neither_side_nor_length_tells_the_label(corpus, length, pairing, built):
    scores = probes(built(corpus), length, pairing)
    print(corpus.stem, length, pairing, {name: round(score, 3) for name, score in scores.items()})
    if pairing == "balanced":
        # What both sides share, such as the length of their sentences, does show whether they are of one text.
        telling = {name: score for name, score in scores.items() if name not in ("A and B: sentences, stops", "rows")}
        assert all(score < BAR for score in telling.values()), scores
