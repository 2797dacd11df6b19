"""Speed of the rule near_duplicates against datatrove's signatures, and its units at the sizes of larger corpora.

    python benchmarks/bench_near_duplicates.py speed FILE.jsonl ... [--megabytes 20]
    python benchmarks/bench_near_duplicates.py growth

`speed` takes CPU seconds of documents that are in memory, ours and datatrove's, each three times; the best counts.
datatrove is left out if it is not installed. `growth` writes the files that a unit of each kind would read in a corpus
of so many gigabytes, with random keys, runs the unit in a process of its own, and reports CPU seconds and peak memory.
A document is 5 kB there, and there are 0.6 edges per document.
"""

import argparse
import json
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from data_prep.clean.grouped_hashes import HASHES_PER_RANGE, HashPlan, RangeTask, distinct, write_rows
from data_prep.clean.near_duplicates import (
    Signature,
    count_members,
    gather_fates,
    hook,
    join_keys,
    jump,
    merge_keys,
    write_fates,
    write_keys,
)
from data_prep.documents.document_set import hash_range

SIGNATURE = Signature(words=5, bands=14, rows=8)
CHUNK_DOCUMENTS, BANDS, EDGE_SHARE = (8 << 20) // 5000, 14, 0.3
SIZES_GB = (0.5, 9, 95, 500)


def cpu_s(function: Callable[[], object]) -> float:
    """Return the CPU seconds of a call."""
    start = time.process_time()
    function()
    return time.process_time() - start


def speed(paths: list[Path], megabytes: float) -> None:
    """Print MB/s per core of signatures, ours and datatrove's."""
    texts, size = [], 0
    for path in paths:
        for line in path.open(encoding="utf-8"):
            texts.append(json.loads(line)["text"])
            size += len(texts[-1].encode())
            if size > megabytes * 1e6:
                break
    ours = {"keys": lambda: [SIGNATURE.keys(text) for text in texts], "keys, hashed and sorted": lambda: _write(texts)}
    rows = {name: min(cpu_s(function) for _ in range(3)) for name, function in ours.items()}
    try:
        from datatrove.pipeline.dedup.minhash import MinhashConfig, MinhashDedupSignature

        step = MinhashDedupSignature(tempfile.mkdtemp(), MinhashConfig())
        some = texts[: max(1, len(texts) // 10)]
        part = sum(len(text.encode()) for text in some) / size
        seconds = min(cpu_s(lambda: [step.get_signature(step.get_shingles(text)) for text in some]) for _ in range(3))
        rows["datatrove: get_shingles, get_signature"] = seconds / part
    except ImportError as error:
        print(f"datatrove is not installed ({error})")
    print(f"{len(texts):,} documents, {size / 1e6:.1f} MB\n\n| | CPU s | MB/s per core |\n|---|---|---|")
    for name, seconds in rows.items():
        print(f"| {name} | {seconds:.2f} | {size / 1e6 / seconds:.1f} |")


def _write(texts: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_keys(([text] for text in texts), SIGNATURE, Path(folder) / "000000.npy")


def _rows(chance: np.random.Generator, count: int, low: int = 0, high: int = 1 << 64) -> np.ndarray:
    """Return random pairs whose first numbers are in a range, ascending."""
    first = chance.integers(low, min(high, (1 << 64) - 1), count, np.uint64)
    return distinct(np.stack([first, chance.integers(0, first // np.uint64(2) + np.uint64(1), dtype=np.uint64)]))


def _measure(function: Callable[[RangeTask], object], task: RangeTask, queue: multiprocessing.Queue) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    queue.put((cpu_s(lambda: function(task)), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, before / 1024))


def measured(function: Callable[[RangeTask], object], task: RangeTask) -> tuple[float, float]:
    """Run a unit in a process of its own; return its CPU seconds and its peak MiB."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_measure, args=(function, task, queue))
    process.start()
    seconds, peak, _ = queue.get()
    process.join()
    return seconds, peak


def growth() -> None:
    """Print the cost of each kind of unit at each size."""
    headers = ("GB", "unit", "units", "files read", "rows read", "CPU s", "us per document", "peak MiB")
    print(f"| {' | '.join(headers)} |\n{'|---' * len(headers)}|")
    for size in SIZES_GB:
        chunks = max(1, round(size * 1e9 / (8 << 20)))
        documents = chunks * CHUNK_DOCUMENTS
        plan = HashPlan.of(chunks, documents * BANDS)
        edges = int(documents * EDGE_SHARE * 2)
        ranges = max(1, -(-edges // HASHES_PER_RANGE))
        for name, units, function, files, rows, task in _units(plan, chunks, edges, ranges):
            with tempfile.TemporaryDirectory() as folder:
                made = task(Path(folder))
                seconds, peak = measured(function, made)
            per_document = 1e6 * seconds * units / documents
            cells = (f"{seconds:.2f}", f"{per_document:.2f}", f"{peak:.0f}")
            print(" | ".join((f"| {size}", name, f"{units:,}", f"{files:,}", f"{rows:,}", *cells)), "|", flush=True)


def _units(plan: HashPlan, chunks: int, edges: int, ranges: int) -> list:
    chance = np.random.default_rng(1)
    own_chunks, keys = len(plan.chunks_of(0)), CHUNK_DOCUMENTS * BANDS

    def planted(folder: Path, name: str, count: int, rows: int, parts: int) -> None:
        """Write ``count`` files, each with the rows that a unit of the first of ``parts`` ranges takes of it."""
        for number in range(count):
            write_rows(folder / name.format(number), _rows(chance, rows, *hash_range(0, parts)))

    def merge(folder: Path) -> RangeTask:
        planted(folder, "k{}.npy", own_chunks, keys // plan.blocks, plan.blocks)
        planted(folder, "e{}.npy", own_chunks, CHUNK_DOCUMENTS // 10 // plan.blocks, plan.blocks)
        return RangeTask((("k{}.npy", own_chunks), ("e{}.npy", own_chunks)), folder, 0, plan.blocks, folder / "o.npy")

    join_rows = chunks * keys // plan.ranges // plan.groups

    def join(folder: Path) -> RangeTask:
        planted(folder, "k{}.npy", plan.groups, join_rows, plan.ranges)
        return RangeTask((("k{}.npy", plan.groups),), folder, 0, plan.ranges, folder / "o.npy")

    first_files = plan.groups * plan.blocks + plan.ranges

    def hooked(folder: Path) -> RangeTask:
        planted(folder, "e{}.npy", first_files, edges // ranges // first_files, ranges)
        return RangeTask((("e{}.npy", first_files),), folder, 0, ranges, folder / "o.npy")

    def jumped(folder: Path) -> RangeTask:
        for number in range(ranges):
            write_rows(folder / f"p{number}.npy", _rows(chance, edges // ranges, *hash_range(number, ranges)))
        planted(folder, "l{}.npy", 1, edges // ranges // 10, ranges)
        return RangeTask((("p{}.npy", ranges), ("l{}.npy", 1)), folder, 0, ranges, folder / "o.npy")

    def settled(folder: Path) -> RangeTask:
        planted(folder, "m{}.npy", ranges, edges // ranges // ranges, ranges)
        for number in range(ranges):
            rows = np.unique(chance.integers(0, 1000, edges // ranges, np.uint64))
            write_rows(folder / f"m{number}.npy", np.stack([rows, rows + np.uint64(1)]))
        planted(folder, "p{}.npy", 1, edges // ranges, ranges)
        return RangeTask((("m{}.npy", ranges), ("p{}.npy", 1)), folder, 0, ranges, folder / "o.npy")

    def counted(folder: Path) -> RangeTask:
        planted(folder, "p{}.npy", 1, edges // ranges, ranges)
        return RangeTask((("p{}.npy", 1),), folder, 0, ranges, folder / "o.npy")

    def gathered(folder: Path) -> RangeTask:
        for number in range(own_chunks):
            documents = np.unique(chance.integers(0, 1 << 63, CHUNK_DOCUMENTS, np.uint64))
            write_rows(folder / f"{number:06d}.npy", np.tile(documents, (2, BANDS)))
            write_rows(folder / f"{number:06d}-edges.npy", np.stack([documents, documents])[:, : CHUNK_DOCUMENTS // 10])
        for number in range(ranges):
            write_rows(folder / f"s{number}.npy", _rows(chance, edges // ranges, *hash_range(number, ranges)))
        return RangeTask((("{:06d}.npy", own_chunks), ("s{}.npy", ranges)), folder, 0, 1, folder / "o.npy")

    per_range = edges // ranges
    return [
        ("merge", plan.groups * plan.blocks, merge_keys, 2 * own_chunks, own_chunks * keys // plan.blocks, merge),
        ("join", plan.ranges, join_keys, plan.groups, join_rows * plan.groups, join),
        ("hook, first round", ranges, hook, first_files, per_range, hooked),
        ("jump", ranges, jump, ranges + 1, per_range, jumped),
        ("count members", ranges, count_members, 1, per_range, counted),
        ("write fates", ranges, write_fates, ranges + 1, per_range, settled),
        ("gather", plan.groups, gather_fates, 2 * own_chunks + ranges, own_chunks * keys, gathered),
    ]


def main() -> None:
    """Run the part that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=("speed", "growth"), default="speed")
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--megabytes", type=float, default=20)
    options = parser.parse_args()
    if options.part == "speed":
        speed(options.files or [Path(__file__).parents[1] / "examples/corpus/public_domain.jsonl"], options.megabytes)
    else:
        growth()


if __name__ == "__main__":
    main()
