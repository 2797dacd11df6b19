"""What a fine-tuned model has to beat: a bag of words, and a linear probe of frozen vectors, on the same examples.

    python -m benchmarks.finetuning.baselines --data DATA --models models/english --sizes film snli-10k

Both are logistic regressions (scikit-learn). The words are those of the training examples, in capitals or not, present
or absent; of a pair, those of each side by itself and those of both sides. A probe reads the mean of the last hidden
states, scaled to deviation 1; of a pair, u, v, |u - v| and u * v (Conneau et al. 2017, arXiv:1705.02364). The strength
of the penalty is chosen on a fifth of the training examples, then all of them are fitted.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import hstack
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedShuffleSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.finetuning.compare import SIZES
from megabert.downstream.finetuning.setup import find_labelled_files, read_examples, subset
from megabert.downstream.finetuning.tasks import find_task
from megabert.library import load_model
from megabert.settings.config.finetune import FinetuneConfig
from megabert.settings.config.loading import merge_layers

PENALTIES = [0.003, 0.01, 0.03, 0.1, 0.3, 1.0]
READ = 400
"""Characters of a text that a model reads; 512 tokens hold them."""


class Examples:
    """Texts of a split, their second sides or nothing, and their labels."""

    def __init__(self, examples: list) -> None:
        self.first = [example.text for example in examples]
        self.second = [example.pair for example in examples if example.pair]
        both = [f"{first} / {second}" for first, second in zip(self.first, self.second, strict=bool(self.second))]
        self.views = [self.first, self.second, both] if self.second else [self.first]
        self.labels = [example.label for example in examples]


def read(size: str, data: Path) -> list[Examples]:
    """Return the training and the scored examples of a size, the same ones as in a fine-tuning."""
    name, folder, fields = SIZES[size]
    config = merge_layers(FinetuneConfig, {"model": "none", "data": str(data / folder)} | fields)
    task = find_task(name, config)
    train, (scored, *_) = find_labelled_files(task, config)
    limits = (config.max_train_examples, config.max_eval_examples)
    return [
        Examples(subset(read_examples(task, path), most)) for path, most in zip((train, scored), limits, strict=True)
    ]


def words(splits: list[Examples]) -> list:
    """Return which words the examples have, as sparse matrices: of the first texts, of the second, of both joined."""
    columns = []
    for train, scored in zip(*(split.views for split in splits), strict=True):
        counter = CountVectorizer(binary=True).fit(train)
        columns.append([counter.transform(train), counter.transform(scored)])
    return [hstack(parts).tocsr() for parts in zip(*columns, strict=True)]


def vectors(splits: list[Examples], model: str) -> list[NDArray[np.float32]]:
    """Return the model's vectors of the examples."""
    encoder = load_model(model, device="cpu")

    def features(part: Examples) -> NDArray[np.float32]:
        u = encoder.embed([text[:READ] for text in part.first])
        if not part.second:
            return u
        v = encoder.embed([text[:READ] for text in part.second])
        return np.concatenate([u, v, np.abs(u - v), u * v], axis=1)

    return [features(part) for part in splits]


def accuracy(features: list, splits: list[Examples], *, scale: bool) -> float:
    """Return the share of scored examples that a logistic regression on the training examples gets right."""
    folds = StratifiedShuffleSplit(1, test_size=0.2, random_state=0)
    fitted = GridSearchCV(LogisticRegression(max_iter=2000), {"C": PENALTIES}, cv=folds)
    classifier = make_pipeline(StandardScaler(), fitted) if scale else fitted
    return float(classifier.fit(features[0], splits[0].labels).score(features[1], splits[1].labels))


def main() -> None:
    """Print a row for each set and way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--models", nargs="*", default=[], metavar="MODEL", help="whose vectors are probed")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["film"])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write them, by set: words, then models")
    options = parser.parse_args()
    print("| set | features | accuracy |\n|---|---|---|")
    found: dict[str, list[float]] = {}
    for size in options.sizes:
        splits = read(size, options.data)
        ways = [("words", accuracy(words(splits), splits, scale=False))]
        ways += [(model, accuracy(vectors(splits, model), splits, scale=True)) for model in options.models]
        for way, score in ways:
            print(f"| {size} | {way} | {score:.1%} |", flush=True)
        found[size] = [score for _, score in ways]
    if options.json:
        options.json.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
