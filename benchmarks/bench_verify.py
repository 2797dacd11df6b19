"""Megabytes of shards per second and core that `megabert-data verify` checks, and what no check can do without.

    python benchmarks/bench_verify.py [FOLDER/instances/128] [--repeats 5]

Stored bytes are those of the files; raw bytes are those of the Arrow buffers once decompressed. The floor is SHA-256 of
the stored bytes alone and decompression alone. CPU seconds of this process, the least of several rounds; the files are
read once before. The bar is 500 MB/s.
"""

import argparse
import hashlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

from data_prep.checks.invariants import Rules
from data_prep.checks.verify import ShardTask, check_shard, shard_tasks
from data_prep.cli import main as megabert_data
from data_prep.documents.document_set import tokenizer_of
from megabert.tokens.shards.columns import FlatInstances
from megabert.tokens.shards.folder import read_manifest

CORPUS = Path(__file__).parents[1] / "examples" / "corpus" / "public_domain.jsonl"
OPTIONS = pa.ipc.IpcReadOptions(use_threads=False)


def least_s(work: Callable[[], None], repeats: int) -> float:
    """Return the CPU seconds of the fastest of several rounds."""
    taken = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return min(taken)


def measure(folder: Path, repeats: int) -> None:
    """Print a line a step."""
    manifest = read_manifest(folder)
    tasks = shard_tasks(folder, manifest)
    rules = Rules.of(manifest.metadata, tokenizer_of(folder / "tokenizer"))

    def batches(task: ShardTask) -> Iterator[pa.RecordBatch]:
        reader = pa.ipc.open_file(pa.memory_map(str(task.path)), options=OPTIONS)
        return map(reader.get_batch, range(reader.num_record_batches))

    def hash_all() -> None:
        for task in tasks:
            hashlib.sha256(pa.memory_map(str(task.path)).read_buffer()).digest()

    def decompress_all() -> None:
        for task in tasks:
            for _ in batches(task):
                pass

    def check_all() -> None:
        for task in tasks:
            assert check_shard(task)[0] == []

    some = [FlatInstances.of(batch) for task in tasks[:2] for batch in batches(task)]
    rows = sum(entry.rows for entry in manifest.shards)
    share = rows / sum(len(batch.next_sentence_labels) for batch in some)

    def apply_rules() -> None:
        for batch in some:
            assert rules.broken(batch) == {}

    stored = sum(task.path.stat().st_size for task in tasks) / 1e6
    raw = sum(batch.nbytes for task in tasks for batch in batches(task)) / 1e6
    check_all()
    seconds = {
        "SHA-256 alone": least_s(hash_all, repeats),
        "decompression alone": least_s(decompress_all, repeats),
        "rules alone (of two shards)": least_s(apply_rules, repeats) * share,
        "verify": least_s(check_all, repeats),
    }
    seconds["floor: SHA-256 and decompression"] = seconds["SHA-256 alone"] + seconds["decompression alone"]
    print(f"{len(tasks)} shards, {rows:,} instances, {stored:.1f} MB stored, {raw:.1f} MB raw")
    for name, taken in seconds.items():
        print(f"{name:34s} {taken:7.3f} CPU s {stored / taken:8.0f} MB/s stored {raw / taken:8.0f} MB/s raw")


def main() -> None:
    """Measure the shards that are named, or build some."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, help="finished instance shards (default: the bundled corpus')")
    parser.add_argument("--repeats", type=int, default=5, help="rounds of each step (default 5)")
    arguments = parser.parse_args()
    if arguments.folder is not None:
        measure(arguments.folder, arguments.repeats)
        return
    with tempfile.TemporaryDirectory() as built:
        build = ["build", "--input", str(CORPUS), "--output", built, "--vocab-size", "8192", "--lengths", "128"]
        if megabert_data([*build, "--workers", "1"]):
            sys.exit(1)
        measure(Path(built) / "instances" / "128", arguments.repeats)


if __name__ == "__main__":
    main()
