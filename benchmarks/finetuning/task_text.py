"""The text of SNLI's and the film sentences' training files as documents to pre-train on; labels are left out.

    python benchmarks/finetuning/task_text.py DATA TEXT

A premise and its hypotheses are a document, and so are ten film sentences that follow each other in the file.
"""

import json
import sys
from collections.abc import Iterable
from pathlib import Path


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


def main(data: Path, text: Path) -> None:
    """Write TEXT/snli.jsonl and TEXT/film.jsonl."""
    text.mkdir(parents=True, exist_ok=True)
    for name, documents in (("snli", snli(data)), ("film", film(data))):
        with open(text / f"{name}.jsonl", "w", encoding="utf-8") as out:
            for number, sentences in enumerate(documents):
                ended = (s if s[-1] in ".?!" else f"{s}." for s in sentences if s)
                out.write(json.dumps({"id": f"{name}-{number}", "text": "\n".join(ended)}) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
