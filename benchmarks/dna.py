"""A BERT of single bases against Markov models, in bits per masked base of held-out DNA; a run per seed.

    python -m benchmarks.dna [--seeds 1 2 3] [--work build/dna]

All models are asked for the same bases: 15% of the held-out instances of full length, at least five bases from either
end. They do not see the same. The Markov models are counted on the training documents and see the true bases: of order
5 the five before the base, the two-sided one also the five after it (the conditional probability of a base in the chain
of order 5, given all others). The model sees 126 bases, of which all that it is asked for are masked. Exported folders
are scored by transformers.
"""

import argparse
import statistics
from pathlib import Path

import numpy as np

from benchmarks.cells import ROOT, call, spread
from data_prep.documents.document_set import DocumentSet
from examples.dna.prepare import SYMBOLS
from examples.dna.prepare import main as prepare
from megabert.foundation.text_tables import render_table

ORDER = 5
FIRST = SYMBOLS.index("A")
CLS, SEP, MASK = (SYMBOLS.index(name) for name in ("[CLS]", "[SEP]", "[MASK]"))
LENGTH = 128
SHARE = 0.15
RECIPE = ROOT / "examples" / "dna" / "recipe.yaml"


def build(work: Path) -> Path:
    """Write the bundled sequence as ids, and build shards of them, or find these finished."""
    data, ids = work / "data", work / "ids"
    if not (data / "instances" / str(LENGTH) / "manifest.json").exists():
        prepare(ids)
        words = ("--input", ids / "bases.npy", "--format", "ids", "--symbols", ids / "symbols.txt", "--output", data)
        words += ("--for", RECIPE, "--dupe-factor", "4", "--validation-share", "0.1", "--workers", "1")
        call("data_prep", "build", *words)
    return data


def documents(data: Path, split: str) -> list[np.ndarray]:
    """Return the documents of a split, as bases from 0 to 3."""
    stored = DocumentSet.open(data / "documents", split, len(SYMBOLS))
    parts = []
    for bucket in range(stored.num_buckets):
        document_starts, starts = stored.sentences(bucket)
        borders = starts[document_starts] - starts[0]
        parts += np.split(np.asarray(stored.bucket_tokens(bucket)).astype(np.int64) - FIRST, borders[1:-1])
    return parts


def questions(data: Path, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return held-out windows of full length, shape (instances, bases), and which of their bases are asked for."""
    width = LENGTH - 2
    windows = [part[: len(part) // width * width].reshape(-1, width) for part in documents(data, "validation")]
    bases = np.concatenate(windows)
    is_asked = np.random.default_rng(seed).random(bases.shape) < SHARE
    is_asked[:, :ORDER] = is_asked[:, -ORDER:] = False
    return bases, is_asked


def _contexts(bases: np.ndarray, order: int) -> np.ndarray:
    """Return the number of the ``order`` bases before each base along the last axis, from base ``order`` on."""
    width = bases.shape[-1] - order
    return sum(bases[..., i : i + width] * 4 ** (order - 1 - i) for i in range(order))


def markov(parts: list[np.ndarray], order: int = ORDER) -> np.ndarray:
    """Return the log2 of the probability of each base after each context, counted with 1 added to each count."""
    counts = np.ones((4**order, 4))
    for part in parts:
        np.add.at(counts, (_contexts(part, order), part[order:]), 1)
    return np.log2(counts / counts.sum(axis=1, keepdims=True))


def markov_bits(log2: np.ndarray, bases: np.ndarray, is_asked: np.ndarray) -> tuple[float, float]:
    """Return the bits per asked base of a chain by the bases before it, and by those on both sides."""
    rows, columns = np.nonzero(is_asked)
    order = round(np.log2(len(log2)) / 2)
    around = bases[rows[:, None], columns[:, None] + np.arange(-order, order + 1)]
    truth = around[:, order]
    one_sided = log2[_contexts(around[:, : order + 1], order)[:, 0], truth]
    # Each candidate changes its own probability and those of the bases after it.
    joint = np.empty((len(rows), 4))
    for candidate in range(4):
        filled = around.copy()
        filled[:, order] = candidate
        joint[:, candidate] = log2[_contexts(filled, order), filled[:, order:]].sum(axis=1)
    joint -= np.log2(np.exp2(joint).sum(axis=1, keepdims=True))
    two_sided = joint[np.arange(len(rows)), truth]
    return -float(one_sided.mean()), -float(two_sided.mean())


def model_bits(folder: Path, bases: np.ndarray, is_asked: np.ndarray) -> float:
    """Return the bits per asked base of an exported model, all of them masked at once, in transformers."""
    import torch
    from transformers import AutoModelForMaskedLM

    model = AutoModelForMaskedLM.from_pretrained(folder).eval()
    inputs = np.pad(np.where(is_asked, MASK, bases + FIRST), ((0, 0), (1, 1)), constant_values=((0, 0), (CLS, SEP)))
    losses = []
    for start in range(0, len(bases), 64):
        part = slice(start, start + 64)
        with torch.inference_mode():
            logits = model(torch.from_numpy(inputs[part])).logits[:, 1:-1]
        asked = torch.from_numpy(is_asked[part])
        targets = torch.from_numpy(bases[part] + FIRST)[asked]
        losses.append(torch.nn.functional.cross_entropy(logits[asked].double(), targets, reduction="none"))
    return float(torch.cat(losses).mean() / np.log(2))


def train(data: Path, seed: int, work: Path, *flags: object) -> Path:
    """Train and export a model, or finish the work of an earlier call; return the exported folder."""
    run, folder = work / f"run-{seed}", work / f"model-{seed}"
    call("megabert", "pretrain", "--recipe", RECIPE, "--data.path", data, "--run-dir", run, "--seed", seed, *flags)
    call("megabert", "export", run, "--to", folder)
    return folder


def main() -> None:
    """Train, score, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "dna")
    options = parser.parse_args()
    data = build(options.work)
    bases, is_asked = questions(data)
    one_sided, two_sided = markov_bits(markov(documents(data, "train")), bases, is_asked)
    print(f"{is_asked.sum():,} of {bases.size:,} held-out bases asked for, in {len(bases):,} windows", flush=True)
    models = {}
    for seed in options.seeds:
        models[seed] = model_bits(train(data, seed, options.work), bases, is_asked)
        print(f"seed {seed}: {models[seed]:.4f} bits", flush=True)
    rows = [
        ("Markov, order 5", "5 before", f"{one_sided:.4f}"),
        ("Markov, order 5, two-sided", "5 before, 5 after", f"{two_sided:.4f}"),
        ("BERT", "126, without 15%", spread(list(models.values()))),
    ]
    print(render_table(rows, headers=("model", "bases seen", "bits per base"), align="llr"))
    print(f"below order 5: {one_sided - statistics.fmean(models.values()):.4f} bits")


if __name__ == "__main__":
    main()
