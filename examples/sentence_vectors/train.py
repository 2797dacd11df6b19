"""Train an exported encoder on pairs with sentence-transformers, and score its vectors before and after.

    megabert export runs/demo --to models/demo-mean --sentence-transformers mean
    python -m examples.sentence_vectors.train models/demo-mean --pairs runs/pairs --to models/demo-search

The training is contrastive: among all documents of a batch, a query has to be nearest to its own. It needs
`pip install 'megabert[vectors]'`. A folder exported with `colbert` is trained as a MultiVectorEncoder.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from datasets import Dataset
from sentence_transformers import (
    MultiVectorEncoder,
    MultiVectorEncoderTrainer,
    MultiVectorEncoderTrainingArguments,
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.multi_vector_encoder.evaluation import MultiVectorInformationRetrievalEvaluator
from sentence_transformers.multi_vector_encoder.losses import MultiVectorMultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

from examples.sentence_vectors.pairs import TEST, TRAIN, Pair, read_pairs

Model = SentenceTransformer | MultiVectorEncoder


class Kit(NamedTuple):
    """Classes of sentence-transformers that belong together."""

    model: Any
    trainer: Any
    arguments: Any
    loss: Any
    evaluator: Any


KITS = {
    "SentenceTransformer": Kit(
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
        MultipleNegativesRankingLoss,
        InformationRetrievalEvaluator,
    ),
    "MultiVectorEncoder": Kit(
        MultiVectorEncoder,
        MultiVectorEncoderTrainer,
        MultiVectorEncoderTrainingArguments,
        MultiVectorMultipleNegativesRankingLoss,
        MultiVectorInformationRetrievalEvaluator,
    ),
}


def load(folder: Path) -> Model:
    """Load an exported or a trained folder as the class that it names."""
    settings = json.loads((folder / "config_sentence_transformers.json").read_text(encoding="utf-8"))
    return KITS[settings["model_type"]].model(str(folder))


def train(model: Model, pairs: Sequence[Pair], options: argparse.Namespace) -> None:
    """Train a model in place."""
    kit = KITS[type(model).__name__]
    with TemporaryDirectory() as folder:
        arguments = kit.arguments(
            output_dir=folder,
            num_train_epochs=options.epochs,
            per_device_train_batch_size=options.batch_size,
            learning_rate=options.learning_rate,
            warmup_steps=0.1,  # share of all steps
            batch_sampler="no_duplicates",  # a document twice in a batch would be its own negative
            seed=options.seed,
            save_strategy="no",
            logging_strategy="epoch",
            report_to="none",
            disable_tqdm=True,
        )
        texts = Dataset.from_list([pair._asdict() for pair in pairs])
        kit.trainer(model=model, args=arguments, train_dataset=texts, loss=kit.loss(model)).train()


def score(model: Model, pairs: Sequence[Pair]) -> float:
    """Return nDCG@10 of finding the document of each query among all documents."""
    queries = {f"q{index}": pair.query for index, pair in enumerate(pairs)}
    documents = {f"d{index}": pair.document for index, pair in enumerate(pairs)}
    relevant = {f"q{index}": {f"d{index}"} for index in range(len(pairs))}
    evaluator = KITS[type(model).__name__].evaluator(queries, documents, relevant, write_csv=False)
    return evaluator(model)[evaluator.primary_metric]


def largest_difference(model: Model, other: Model, texts: Sequence[str]) -> float:
    """Return the largest difference between numbers of the vectors that two models give."""
    pairs = zip(model.encode(texts), other.encode(texts), strict=True)
    return max(float(np.abs(np.asarray(one) - np.asarray(two)).max()) for one, two in pairs)


def main(words: Sequence[str] | None = None) -> None:
    """Read the command line, train, save, load again, and print the scores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="folder that `megabert export --sentence-transformers` wrote")
    parser.add_argument("--pairs", type=Path, required=True, metavar="DIR", help="folder of the pairs")
    parser.add_argument("--to", type=Path, required=True, metavar="DIR", help="folder to save the trained model in")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--learning-rate", type=float, default=1e-3, help="2e-5 to 1e-4 suit a BERT-Base")
    parser.add_argument("--batch-size", type=int, default=64, help="pairs per step, so many minus one are negatives")
    parser.add_argument("--max-length", type=int, default=64, help="tokens of a text in training")
    parser.add_argument("--seed", type=int, default=42)
    options = parser.parse_args(words)

    model, held_out = load(options.model), read_pairs(options.pairs / TEST)
    before = score(model, held_out)
    longest, model.max_seq_length = model.max_seq_length, options.max_length
    train(model, read_pairs(options.pairs / TRAIN), options)
    model.max_seq_length = longest
    model.save(str(options.to))

    loaded = load(options.to)
    apart = largest_difference(model, loaded, [pair.query for pair in held_out])
    print(f"{options.to}: loaded again, its vectors are at most {apart:.1e} apart from those that were saved")
    after = score(loaded, held_out)
    print(f"nDCG@10 of {len(held_out):,} held-out pairs: {before:.4f} before training, {after:.4f} after")


if __name__ == "__main__":
    main()
