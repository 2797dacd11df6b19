"""Build what the parts with a corpus read, where the corpus and its tools are; build/bench-gpu-shards goes along.

    python -m benchmarks.gpu.shards [TEXT.jsonl ...] [--vocab-size 30522] [--snli FOLDER --pairs 40000] [--workers 2]

Without a file: the shipped corpus with 4,096 pieces. --snli names what benchmarks/finetuning/data.py wrote; sentences
and labels of it are taken along.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from benchmarks.gpu.runs import LENGTHS, ROOT, SHARDS

CORPUS = ROOT / "examples" / "corpus" / "public_domain.jsonl"
SNLI_FIELDS = ("sentence1", "sentence2", "gold_label")


def build_command(texts: list[str], vocab_size: int, workers: int) -> list[str]:
    """Return the command that makes shards of both lengths, 2% held out."""
    command = [sys.executable, "-m", "data_prep", "build", "--input", *texts, "--format", "jsonl", "--language", "en"]
    command += ["--output", str(SHARDS), "--vocab-size", str(vocab_size), "--uncased"]
    command += ["--lengths", *map(str, LENGTHS), "--dupe-factor", "1", "--validation-share", "0.02"]
    return [*command, "--workers", str(workers)]


def write_pairs(path: Path, lines: Iterable[str]) -> None:
    """Write SNLI's rows without parse trees and annotators, those without a label left out."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as output:
        for line in lines:
            row = json.loads(line)
            if row["gold_label"] != "-":
                output.write(json.dumps({name: row[name] for name in SNLI_FIELDS}) + "\n")


def main() -> None:
    """Build, and say how large it is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="*", metavar="TEXT.jsonl")
    parser.add_argument("--vocab-size", type=int)
    parser.add_argument("--snli", type=Path)
    parser.add_argument("--pairs", type=int, default=40_000)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    vocab_size = options.vocab_size or (30_522 if options.texts else 4_096)
    command = build_command(options.texts or [str(CORPUS)], vocab_size, options.workers)
    subprocess.run(command, cwd=ROOT, check=True)
    if options.snli:
        for name, most in (("train", options.pairs), ("test", None)):
            lines = (options.snli / f"{name}.jsonl").read_text().splitlines()
            write_pairs(SHARDS / "snli" / f"{name}.jsonl", lines[:most])
    travels = [p for folder in ("instances", "tokenizer", "snli") for p in (SHARDS / folder).rglob("*") if p.is_file()]
    print(f"{SHARDS}: {sum(path.stat().st_size for path in travels) / 1e6:.1f} MB of instances, tokenizer and pairs")


if __name__ == "__main__":
    main()
