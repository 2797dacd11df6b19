"""The scores of a shipped model by transformers, without megabert: ``python same_scores.py models/english``.

Each piece of a sentence is masked in a copy and guessed from the others; the log-probabilities add up (Salazar et al.
2020). ``sentences.jsonl`` in the folder has megabert's sums. Needs transformers and torch alone.
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
    """Return the sum of the log-probabilities of the pieces of a text, each masked alone."""
    ids_S = tokenizer(text, return_tensors="pt")["input_ids"][0]
    positions_M = torch.arange(1, len(ids_S) - 1)  # all but [CLS] and [SEP]
    copies_MS = ids_S.repeat(len(positions_M), 1)
    rows_M = torch.arange(len(positions_M))
    copies_MS[rows_M, positions_M] = tokenizer.mask_token_id
    logits_MV = model(input_ids=copies_MS).logits[rows_M, positions_M]
    return float(torch.log_softmax(logits_MV.double(), -1)[rows_M, ids_S[positions_M]].sum())


def main(folder: Path) -> int:
    """Compare all sentences; return 1 if one differs."""
    model = AutoModelForMaskedLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = [json.loads(line) for line in (folder / "sentences.jsonl").read_text(encoding="utf-8").splitlines()]
    found = [abs(pseudo_log_likelihood(model, tokenizer, row["text"]) - row["score"]) for row in rows]
    loaded = "loaded" if "megabert" in sys.modules else "not loaded"
    print(f"{folder}: {len(rows)} sentences, largest difference {max(found):.1e} nats; megabert is {loaded}")
    return int(max(found) > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
