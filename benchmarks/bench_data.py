"""Megabytes of raw text a second and core into verified shards, against the pure-Python way, in one run.

    python benchmarks/bench_data.py [--input FILE.jsonl] [--tokenizer FOLDER] [--peer-mb 1]

Length 128, dupe factor 5, static masks, balanced pairs, cleaning rules control characters, length and duplicate
documents; Unicode's composed form is always made. The peer does what LDDL does with the same tokenizer: sentences by
rules in Python (here one pattern, which is faster than NLTK's), `tokenizers` to strings of pieces, pairs and masks
by google-research/bert's loops; it writes nothing, which flatters it. The bar is 12 MB/s.
"""

import argparse
import json
import os
import re
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
CORPUS = ROOT / "examples" / "corpus" / "public_domain.jsonl"
SENTENCE_END = re.compile(r"(?<=[.!?])[\"')]*\s+(?=[A-Z\"'(])")


def peer(path: Path, tokenizer_folder: Path, megabytes: float) -> str:
    """Time the pure-Python way on the first part of the text."""
    from unit.data_prep.google_oracle import OracleOptions, create_instances

    from megabert.tokenization import load_tokenizer

    tokenizer = load_tokenizer(tokenizer_folder)
    backend, vocabulary = tokenizer._backend, tokenizer.vocab
    special = tokenizer.special_ids
    options = OracleOptions(128, vocab_size=tokenizer.vocab_size, cls=special.cls, sep=special.sep, mask=special.mask)
    read, documents, parts = 0, [], {}

    def timed(name: str, start: float) -> float:
        parts[name] = parts.get(name, 0.0) + time.process_time() - start
        return time.process_time()

    with open(path, encoding="utf-8") as lines:
        for line in lines:
            start = time.process_time()
            text = json.loads(line)["text"]
            sentences = [s for part in text.splitlines() for s in SENTENCE_END.split(part.strip()) if s]
            start = timed("sentences", start)
            pieces = [encoding.tokens for encoding in backend.encode_batch(sentences, add_special_tokens=False)]
            segments = [[vocabulary[piece] for piece in words] for words in pieces if words]
            timed("tokens", start)
            documents += [segments] if segments else []
            read += len(line.encode())
            if read > megabytes * 1e6:
                break
    start = time.process_time()
    instances = create_instances(documents, 5, 1, options)
    timed("instances", start)
    seconds = sum(parts.values())
    shares = ", ".join(f"{name} {100 * taken / seconds:.0f}%" for name, taken in parts.items())
    return (
        f"peer: {read / 1e6:.1f} MB in {seconds:.1f} CPU s, {read / 1e6 / seconds:.2f} MB/s, "
        f"{len(instances):,} instances ({shares})"
    )


def main() -> None:
    """Print both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", type=Path, default=CORPUS, help="JSON Lines (default: the bundled corpus)")
    parser.add_argument("--tokenizer", type=Path, help="default: a vocabulary of 8,192 pieces is trained first")
    parser.add_argument("--peer-mb", type=float, default=1.0, help="text that the peer reads; 0 leaves it out")
    arguments = parser.parse_args()
    os.environ.update(OMP_NUM_THREADS="1", RAYON_NUM_THREADS="1")
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    from data_prep.cli import main as megabert_data

    with tempfile.TemporaryDirectory() as folder:
        tokenizer = arguments.tokenizer or Path(folder) / "tokenizer"
        text = ["--input", str(arguments.input)]
        if arguments.tokenizer is None:
            megabert_data(["vocab", *text, "--output", str(tokenizer), "--vocab-size", "8192"])
        flags = ["--lengths", "128", "--dupe-factor", "5", "--tokenizer", str(tokenizer)]
        rules = ["--clean", "control_characters", "length", "duplicate_documents"]
        code = megabert_data(["bench", *text, *flags, *rules])
        if code == 0 and arguments.peer_mb:
            print(peer(arguments.input, tokenizer, arguments.peer_mb))
    sys.exit(code)


if __name__ == "__main__":
    main()
