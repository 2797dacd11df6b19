"""Megabytes of raw text per second and core into verified shards, against the pure-Python way, in one run.

    python benchmarks/bench_data.py [--input FILE.jsonl] [--tokenizer FOLDER] [--lengths 128 512] [--peer-mb 1]
    python benchmarks/bench_data.py --input EN.jsonl KO.jsonl ZH.jsonl JA.jsonl --languages en ko zh ja

Each input is built by itself and by the peer, twice, with the ratio of their seconds. Length 128 unless told otherwise,
dupe factor 5, static masks, balanced pairs; Unicode's composed form is always made. The bar is 20 MB/s. The cleaning
rules are control characters, length and duplicate documents, or by `--clean` one build after the other: "all" rules,
and all "documents" rules without those over the whole corpus. These keep the language of the input, and drop by their
default bounds.

The peer does what LDDL does, with the same tokenizer, in pure Python where LDDL is:

- Sentences by one pattern, faster than NLTK's rules: it cuts after ".", "!" or "?" with closing marks and white space
  if a capital, an opening mark or a character from U+1100 on comes next, and after each ideographic stop. It knows no
  abbreviation and cleans nothing. Sentences take 2 to 3% of the peer's time, so the pattern hardly matters.
- `tokenizers` to strings of pieces, one call per document, and a look-up of each string.
- Pairs and masks by the loops of google-research/bert, which put the true B of a random pair back. So the peer makes
  about 12,000 instances per MB of English, 1.6 times as many as the balanced build, and half of its time goes there.

It hashes, writes and verifies nothing, which flatters it. It reads the first documents of the input; of the 13 English
sources, documents spread evenly over all of them take it as long (1.06 to 1.08 MB/s both ways).
"""

import argparse
import json
import os
import re
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
CORPUS = ROOT / "examples" / "corpus" / "public_domain.jsonl"
SENTENCE_END = re.compile(r"(?<=[.!?])[\"')]*\s+(?=[A-Z\"'(\u1100-\uffff])|(?<=[\u3002\uff01\uff1f])")


def rules_of(name: str) -> tuple[str, ...]:
    """Return the cleaning rules of a set."""
    from data_prep.config.cleaning import CleaningRule

    if name == "usual":
        return "control_characters", "length", "duplicate_documents"
    left_out = () if name == "all" else ("near_duplicates", "duplicate_paragraphs")
    return tuple(rule for rule in get_args(CleaningRule) if rule not in left_out)


def peer(path: Path, tokenizer_folder: Path, megabytes: float) -> tuple[str, float]:
    """Time the pure-Python way on the first part of the text; return a line, and MB per second."""
    from unit.data_prep.instances.google_oracle import OracleOptions, create_instances

    from megabert.tokens.tokenization import load_tokenizer

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
    ), read / 1e6 / seconds


def measure(words: list[str]) -> tuple[str, float]:
    """Build in a temporary folder on one core, verify; return a line per step and one for all, and MB per second."""
    from data_prep.checks.verify import verify
    from data_prep.cli import PROGRAM
    from data_prep.commands.build import make_config
    from data_prep.execution.executors import Executor
    from data_prep.extract.inputs import find_files
    from data_prep.pipeline import build_shards
    from megabert.foundation.errors import DataError

    class TimedExecutor(Executor):
        """Everything in this process, with the CPU time of each step."""

        def __init__(self) -> None:
            self.seconds: dict[str, float] = {}

        def run(self, function: Callable[[Any], Any], tasks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
            for index, task in enumerate(tasks):
                step = getattr(task, "step", "") or getattr(function, "func", function).__name__.strip("_")
                start = time.process_time()
                result = function(task)
                self.seconds[step] = self.seconds.get(step, 0.0) + time.process_time() - start
                yield index, result

    executor = TimedExecutor()
    with tempfile.TemporaryDirectory(prefix="megabert-bench-") as folder:
        config = make_config(PROGRAM.parse("build", [*words, "--output", folder])[1])
        start, wall = time.process_time(), time.monotonic()
        built = build_shards(config, Path(folder) / "out", executor)
        for length in config.lengths:
            verdict = verify(built.folder / "instances" / str(length), executor)
            if verdict.problems:
                raise DataError(f"the shards are not sound: {verdict.problems[0]}")
        seconds, wall = time.process_time() - start, time.monotonic() - wall
        shard_bytes = sum(path.stat().st_size for path in built.folder.glob("instances/*/*.arrow"))
    executor.seconds["rest (planning, manifests)"] = seconds - sum(executor.seconds.values())
    megabytes = sum(file.bytes for file in find_files(config.sources)) / 1e6
    rows = sum(total["rows"] for manifest in built.manifests.values() for total in manifest.totals().values())
    corpus = built.manifests[config.lengths[0]].statistics["corpus"]
    lines = [
        f"{step:28s} {taken:8.2f} CPU s {100 * taken / seconds:5.1f}% {megabytes / max(taken, 1e-9):9.1f} MB/s"
        for step, taken in executor.seconds.items()
    ]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    verified = shard_bytes / 1e6 / executor.seconds["check_shard"]
    lines += [
        f"{'all, verified':28s} {seconds:8.2f} CPU s 100.0% {megabytes / seconds:9.1f} MB/s of stored input a core",
        f"{corpus['documents']:,} documents kept of {megabytes:.1f} MB",
        f"{rows:,} instances of {' '.join(map(str, config.lengths))} tokens, dupe factor "
        f"{config.dupe_factor}, {shard_bytes / rows:.0f} bytes an instance, {wall:.1f} s on the clock, "
        f"peak {peak:.0f} MiB; verified {verified:.0f} MB of shards a second",
    ]
    return "\n".join(lines), megabytes / seconds


def main() -> None:
    """Print both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", type=Path, nargs="+", default=[CORPUS], help="JSON Lines (default: the bundled one)")
    parser.add_argument("--languages", nargs="+", default=["en"], help="of the inputs, for their sentences")
    parser.add_argument("--clean", nargs="+", default=["usual"], choices=("usual", "documents", "all"), help="rules")
    parser.add_argument("--vocab-size", type=int, default=8192, help="of a vocabulary that is trained first")
    parser.add_argument("--tokenizer", type=Path, help="default: a vocabulary is trained first")
    parser.add_argument("--lengths", nargs="+", default=["128"], help="of the shards")
    parser.add_argument("--peer-mb", type=float, default=1.0, help="text that the peer reads; 0 leaves it out")
    arguments = parser.parse_args()
    os.environ.update(OMP_NUM_THREADS="1", RAYON_NUM_THREADS="1")
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    from data_prep.cli import main as megabert_data

    for number, path in enumerate(arguments.input):
        language = arguments.languages[min(number, len(arguments.languages) - 1)]
        with tempfile.TemporaryDirectory() as folder:
            tokenizer = arguments.tokenizer or Path(folder) / "tokenizer"
            text = ["--input", str(path)]
            if arguments.tokenizer is None:
                megabert_data(["vocab", *text, "--output", str(tokenizer), "--vocab-size", str(arguments.vocab_size)])
            flags = ["--lengths", *arguments.lengths, "--dupe-factor", "5", "--tokenizer", str(tokenizer)]
            for name in arguments.clean:
                rules = ["--clean", *rules_of(name), "--language", language]
                kept = ["--clean.languages", f"[{language}]"] if "language" in rules else []
                print(f"{path.name}, {language}, rules: {name}")
                # Other work on the machine comes and goes, so the peer runs before the build and after it.
                peers = [peer(path, tokenizer, arguments.peer_mb)] if arguments.peer_mb else []
                lines, ours = measure([*text, *flags, *rules, *kept])
                print(lines)
                peers += [peer(path, tokenizer, arguments.peer_mb) for _ in peers]
                if peers:
                    seconds = sum(1 / rate for _, rate in peers) / len(peers)
                    print("\n".join(line for line, _ in peers))
                    print(f"{ours * seconds:.1f} times the peer in this run\n", flush=True)


if __name__ == "__main__":
    main()
