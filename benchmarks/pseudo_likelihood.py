"""Sentences per second of pseudo-log-likelihoods: megabert, minicons, and transformers with one mask at a time.

    PYTHONPATH=MINICONS python -m benchmarks.pseudo_likelihood MODEL [--sentences 40] [--threads 1]

MODEL is an exported folder. The sentences are the bundled corpus's own, of 5 to 60 pieces. All three score the same
sentences in one run and in turn, three times; the medians are printed, with the largest difference of a sentence's
score, and of its mean per piece, from megabert's in nats. minicons takes batches of sentences (16 here); it is left out
if it cannot be imported.
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import transformers

from megabert.downstream.export.sources import open_source
from megabert.downstream.inspection.pseudo_likelihood import SentenceScorer
from megabert.training.probes.masked_copies import CopyMask

CORPUS = Path(__file__).parent.parent / "examples/corpus/public_domain.jsonl"
ROUNDS = 3
Score = Callable[[Sequence[str], CopyMask], list[float]]


def sentences_of(count: int, tokenizer: transformers.PreTrainedTokenizerBase) -> list[str]:
    """Return sentences of the bundled corpus, drawn by a fixed seed."""
    texts = [json.loads(line)["text"] for line in CORPUS.read_text(encoding="utf-8").splitlines()]
    sentences = [f"{part.strip()}." for text in texts for part in text.replace("\n", " ").split(".")]
    rng = random.Random(0)
    rng.shuffle(sentences)
    fitting = (text for text in sentences if 5 <= len(tokenizer.tokenize(text)) <= 60)
    return [next(fitting) for _ in range(count)]


def ours(folder: str) -> Score:
    """Return megabert's scorer."""
    source = open_source(folder)
    scorers = {mask: SentenceScorer(source, mask=mask) for mask in ("within-word", "token")}
    return lambda texts, mask: scorers[mask].score(texts).scores_S.tolist()


def one_at_a_time(folder: str) -> Score:
    """Return transformers' model, which gets each copy by itself."""
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)

    @torch.inference_mode()
    def score(texts: Sequence[str], mask: CopyMask) -> list[float]:
        scores = []
        for text in texts:
            encoding = tokenizer(text, return_tensors="pt")
            ids, words, total = encoding["input_ids"][0], encoding.word_ids(), 0.0
            for index in range(1, len(ids) - 1):
                later = [j for j in range(index, len(ids)) if words[j] == words[index]]
                masked = ids.clone()
                masked[later if mask == "within-word" else index] = tokenizer.mask_token_id
                logits = model(input_ids=masked[None]).logits[0, index]
                total += torch.log_softmax(logits.double(), -1)[ids[index]].item()
            scores.append(total)
        return scores

    return score


def minicons(folder: str) -> Score | None:
    """Return minicons' scorer, or None if it cannot be imported."""
    try:
        from minicons import scorer
    except ImportError:
        return None
    model = scorer.MaskedLMScorer(folder, "cpu")
    model.tokenizer.batch_encode_plus = model.tokenizer  # minicons 0.3.39 calls it; transformers 5 has no such method
    metrics: dict[CopyMask, str] = {"within-word": "within_word_l2r", "token": "original"}

    def score(texts: Sequence[str], mask: CopyMask) -> list[float]:
        batches = [list(texts[start : start + 16]) for start in range(0, len(texts), 16)]
        sums = [
            model.sequence_score(batch, reduction=lambda x: x.sum(0).item(), PLL_metric=metrics[mask])
            for batch in batches
        ]
        return [float(value) for batch in sums for value in batch]

    return score


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--sentences", type=int, default=40)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.model)
    texts = sentences_of(options.sentences, tokenizer)
    makers = {"megabert": ours, "transformers, one mask at a time": one_at_a_time, "minicons": minicons}
    scorers = {name: made for name, make in makers.items() if (made := make(options.model)) is not None}
    counts = [len(tokenizer.tokenize(text)) for text in texts]
    print(
        f"{options.sentences} sentences, {sum(counts):,} pieces, {options.threads} thread(s), torch {torch.__version__}"
    )
    for mask in ("token", "within-word"):
        seconds: dict[str, list[float]] = {name: [] for name in scorers}
        scores = {}
        for _ in range(ROUNDS):
            for name, score in scorers.items():
                begin = time.perf_counter()
                scores[name] = score(texts, mask)
                seconds[name].append(time.perf_counter() - begin)
        for name, times in seconds.items():
            rate = len(texts) / statistics.median(times)
            apart = [abs(a - b) for a, b in zip(scores[name], scores["megabert"], strict=True)]
            per_piece = max(one / count for one, count in zip(apart, counts, strict=True))
            print(f"{mask:<12} {name:<33} {rate:6.1f} sentences/s, apart {max(apart):.1e}, {per_piece:.1e} per piece")


if __name__ == "__main__":
    main()
