"""Make pairs for training and scoring sentence vectors from a corpus: a sentence, and the rest of its paragraph.

    python -m examples.sentence_vectors.pairs examples/corpus/public_domain.jsonl --language en --to runs/pairs

A model that finds the paragraph of a sentence has learned what belongs together, and no labels are needed: the
inverse cloze task (Lee et al. 2019, section 4). Every tenth document is held out, whole, so that no scored paragraph
has a neighbour among the trained ones.
"""

import argparse
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from sentencex import segment
from sklearn.feature_extraction.text import TfidfVectorizer

SEED = 42
HELD_OUT = 10
"""Documents per held-out document."""
SHORTEST = 30
"""Characters of the shortest sentence that is taken as a query."""
TRAIN, TEST = "train.jsonl", "test.jsonl"
"""Files of a folder of pairs."""
MOST = {TRAIN: 3, TEST: 1}
"""Pairs of a paragraph."""


class Pair(NamedTuple):
    """A sentence and the paragraph that it was taken out of."""

    query: str
    document: str


def pairs_of(text: str, language: str, draw: random.Random, most: int) -> Iterator[Pair]:
    """Yield up to ``most`` pairs per paragraph of several sentences."""
    for paragraph in text.split("\n\n"):
        sentences = [sentence.strip() for sentence in segment(language, paragraph)]
        places = [place for place, sentence in enumerate(sentences) if len(sentence) >= SHORTEST]
        if len(sentences) < 2:
            continue
        for place in draw.sample(places, min(most, len(places))):
            yield Pair(sentences[place], " ".join(sentences[:place] + sentences[place + 1 :]))


def write_pairs(corpus: Path, language: str, folder: Path) -> None:
    """Write the pairs of a corpus in JSON Lines to the two files of a folder."""
    draw = random.Random(SEED)
    documents = [json.loads(line)["text"] for line in corpus.read_text(encoding="utf-8").splitlines()]
    folder.mkdir(parents=True, exist_ok=True)
    for name, most in MOST.items():
        chosen = [text for index, text in enumerate(documents) if (index % HELD_OUT == 0) == (name == TEST)]
        pairs = [pair for text in chosen for pair in pairs_of(text, language, draw, most)]
        lines = [json.dumps(pair._asdict(), ensure_ascii=False) + "\n" for pair in pairs]
        (folder / name).write_text("".join(lines), encoding="utf-8")
        print(f"{folder / name}: {len(pairs):,} pairs of {len(chosen)} documents")


def read_pairs(path: Path) -> list[Pair]:
    """Return the pairs of a file."""
    return [Pair(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def ndcg_of_words(pairs: list[Pair]) -> float:
    """Return nDCG@10 of finding documents by the words that they share with a query (TF-IDF), without any model."""
    words = TfidfVectorizer(sublinear_tf=True).fit([pair.document for pair in pairs])
    queries, documents = (words.transform(texts) for texts in zip(*pairs, strict=True))
    similarity_QD = (queries @ documents.T).toarray()
    # One document is relevant, so its rank alone decides; equal ones count as if they came after it.
    rank_Q = (similarity_QD > similarity_QD.diagonal()[:, None]).sum(axis=1)
    return float(np.where(rank_Q < 10, 1 / np.log2(rank_Q + 2), 0).mean())


def main(words: Sequence[str] | None = None) -> None:
    """Read the command line and write the pairs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path, help="JSON Lines with documents under `text`")
    parser.add_argument("--language", required=True, help="ISO 639 code for the rules of sentences")
    parser.add_argument("--to", type=Path, required=True, metavar="DIR", help="folder to write")
    options = parser.parse_args(words)
    write_pairs(options.corpus, options.language, options.to)
    print(f"nDCG@10 of the words alone: {ndcg_of_words(read_pairs(options.to / TEST)):.4f}")


if __name__ == "__main__":
    main()
