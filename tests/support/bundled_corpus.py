"""Builds of a few documents of the bundled corpus."""

import json
from pathlib import Path

from forked.client import run_command

CORPUS = Path(__file__).parents[2] / "examples" / "corpus" / "public_domain.jsonl"


def small_corpus(folder: Path) -> Path:
    """Write thirty documents of the bundled corpus, shortened."""
    path = folder / "small.jsonl"
    documents = [json.loads(line) for line in CORPUS.read_text(encoding="utf-8").splitlines()]
    chosen = [{**document, "text": document["text"][:12_000]} for document in documents[::7]]
    path.write_text("".join(json.dumps(document) + "\n" for document in chosen), encoding="utf-8")
    return path


def build_shards(corpus: Path, output: Path, *extra: str) -> Path:
    """Run ``megabert-data build`` for lengths 64 and 128."""
    words = ["build", "--input", str(corpus), "--output", str(output), "--format", "jsonl"]
    words += [] if "--tokenizer" in extra else ["--vocab-size", "1000"]
    words += ["--lengths", "64", "128", "--workers", "1", "--validation-share", "0.2", *extra]
    output.parent.mkdir(parents=True, exist_ok=True)
    messages = output.with_suffix(".out")
    assert run_command("data_prep", words, messages) == 0, messages.read_text()
    return output
