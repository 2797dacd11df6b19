"""The scores of a shipped model by transformers, without megabert: ``python same_scores.py models/english``.

Each piece of a sentence is guessed in a copy in which it is masked, and with it the later pieces of its word; the
log-probabilities add up (Salazar et al. 2020, Kauf and Ivanova 2023). ``sentences.jsonl`` in the folder has megabert's
sums of the minimal pairs, a good sentence and a bad one in turn. Needs transformers and torch alone.
"""

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer

TOLERANCE = 1e-3
"""Nats per sentence, of sums that are rounded to four digits."""


@torch.no_grad()
def pseudo_log_likelihood(model: torch.nn.Module, tokenizer: "AutoTokenizer", text: str) -> float:
    """Return the sum of the log-probabilities of the pieces of a text."""
    ids_S = tokenizer(text, return_tensors="pt")["input_ids"][0]
    pieces_S = tokenizer.convert_ids_to_tokens(ids_S)
    positions_M = torch.arange(1, len(ids_S) - 1)  # all but [CLS] and [SEP]
    copies_MS = ids_S.repeat(len(positions_M), 1)
    rows_M = torch.arange(len(positions_M))
    for row, position in enumerate(positions_M.tolist()):
        end = position + 1
        while pieces_S[end].startswith("##"):
            end += 1
        copies_MS[row, position:end] = tokenizer.mask_token_id
    logits_MV = model(input_ids=copies_MS).logits[rows_M, positions_M]
    return float(torch.log_softmax(logits_MV.double(), -1)[rows_M, ids_S[positions_M]].sum())


def main(folder: Path) -> int:
    """Compare all sentences; return 1 if one differs."""
    model = AutoModelForMaskedLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = [json.loads(line) for line in (folder / "sentences.jsonl").read_text(encoding="utf-8").splitlines()]
    scores = [pseudo_log_likelihood(model, tokenizer, row["text"]) for row in rows]
    largest = max(abs(score - row["score"]) for score, row in zip(scores, rows, strict=True))
    right = sum(good > bad for good, bad in zip(scores[::2], scores[1::2], strict=True))
    loaded = "loaded" if "megabert" in sys.modules else "not loaded"
    print(f"{folder}: {len(rows)} sentences, largest difference {largest:.1e} nats; megabert is {loaded}")
    print(f"minimal pairs: {right} of {len(rows) // 2}, {200 * right / len(rows):.1f}%")
    return int(largest > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
