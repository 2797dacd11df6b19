"""Score the vectors of exported or trained folders by mteb, on a task made of bundled pairs. Nothing is downloaded.

    pip install 'mteb>=2.26'
    python -m examples.sentence_vectors.score models/demo-mean models/demo-search --pairs runs/pairs

The task is one of mteb's retrieval tasks with a `load_data` of its own: texts of yours become a task in the same way.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mteb
from datasets import Dataset
from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.abstasks.task_metadata import TaskMetadata

from examples.sentence_vectors.pairs import TEST, read_pairs
from examples.sentence_vectors.train import load


class ParagraphRetrieval(AbsTaskRetrieval):
    """Find the paragraph of a sentence among the held-out ones."""

    metadata = TaskMetadata(
        name="MegabertParagraphRetrieval",
        description="The rest of the paragraph that a sentence of a public-domain text was taken out of.",
        type="Retrieval",
        category="t2t",
        dataset={"path": "local", "revision": "1"},  # mteb asks for both; load_data below does not use them
        eval_splits=["test"],
        eval_langs=["eng-Latn"],
        main_score="ndcg_at_10",
    )

    def __init__(self, pairs: Path) -> None:
        super().__init__()
        self.pairs = pairs

    def load_data(self, num_proc: int | None = None, **others: Any) -> None:
        """Read the pairs in the form of mteb's retrieval tasks."""
        pairs = read_pairs(self.pairs / TEST)
        texts = {
            "queries": [{"id": f"q{index}", "text": pair.query} for index, pair in enumerate(pairs)],
            "corpus": [{"id": f"d{index}", "text": pair.document} for index, pair in enumerate(pairs)],
        }
        self.dataset = {
            "default": {
                "test": {
                    **{name: Dataset.from_list(rows) for name, rows in texts.items()},
                    "relevant_docs": {f"q{index}": {f"d{index}": 1} for index in range(len(pairs))},
                    "top_ranked": None,
                }
            }
        }
        self.data_loaded = True


def score(folder: Path, pairs: Path) -> dict[str, float]:
    """Return mteb's scores of a folder by their names."""
    results = mteb.evaluate(load(folder), ParagraphRetrieval(pairs), cache=None, show_progress_bar=False)
    return results.task_results[0].scores["test"][0]


def main(words: Sequence[str] | None = None) -> None:
    """Read the command line and print a line per folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="+", metavar="MODEL", help="folder, exported or trained")
    parser.add_argument("--pairs", type=Path, required=True, metavar="DIR", help="folder of the pairs")
    options = parser.parse_args(words)
    for folder in options.models:
        scores = score(folder, options.pairs)
        shown = ", ".join(f"{name} {scores[name]:.4f}" for name in ("ndcg_at_10", "mrr_at_10", "recall_at_100"))
        print(f"mteb {mteb.__version__}, {folder}: {shown}", flush=True)


if __name__ == "__main__":
    main()
