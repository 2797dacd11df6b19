"""What rank 0 does of a build of terabytes: the real planning, adding up, recording and manifests on synthetic units.

    python benchmarks/bench_rank0.py [--terabytes 10] [--ranks 1000] [--log FILE]

No text is there and no unit is done. An executor stands for the other ranks: it pickles each task as MPI would, answers
with what a unit of English web text writes and counts (three cleaning rules with three examples each), and leaves its
own time out. So what is measured is the process that hands out: CPU seconds and memory of a whole build, of a restart
while the documents are made, and of one while instances are. Files that units open are counted from the plan.
"""

import argparse
import json
import pickle
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from data_prep.checks.corpus_counts import corpus_counts  # noqa: E402
from data_prep.checks.stats import LENGTH_BINS  # noqa: E402
from data_prep.clean.grouped_hashes import RangeTask  # noqa: E402
from data_prep.config.build import BuildConfig, SourceConfig  # noqa: E402
from data_prep.config.cleaning import CleanConfig  # noqa: E402
from data_prep.execution import records  # noqa: E402
from data_prep.execution.build_state import BuildState, installed_versions  # noqa: E402
from data_prep.execution.executors import Executor  # noqa: E402
from data_prep.execution.records import (  # noqa: E402
    EXAMPLES,
    CheckTask,
    FileRecord,
    Outcome,
)
from data_prep.execution.work_units import Done, RunningBuild, Unit  # noqa: E402
from data_prep.extract.opening import InputFile  # noqa: E402
from data_prep.pipeline import build_shards  # noqa: E402
from data_prep.steps.step1_extract import PART_CHARACTERS, extract_documents  # noqa: E402
from data_prep.steps.step3_tokens import tokenize_documents  # noqa: E402
from data_prep.steps.step5_documents import (  # noqa: E402
    BUCKET_TOKENS,
    count_buckets,
    fill_buckets,
    merge_chunks,
)
from data_prep.steps.step6_instances import count_buckets_per_shard, make_instances  # noqa: E402
from megabert.settings.config.loading import to_dict  # noqa: E402
from megabert.tokens.shards.folder import lengths_path, read_manifest  # noqa: E402

CORPUS = ROOT / "examples" / "corpus" / "public_domain.jsonl"
FILE_BYTES = 10**9
BYTES_PER_TOKEN, BYTES_PER_DOCUMENT = 4.76, 3000
DIGEST = "0123456789abcdef" * 4
ROUNDS = 15
"""Rounds until the clusters of near duplicates are complete, as a chain of 100,000 documents takes them."""


def memory_mib(name: str) -> int:
    """Return a line of this process's status: VmHWM is the peak since it was reset, VmRSS is now."""
    return int(re.search(rf"{name}:\s+(\d+)", Path("/proc/self/status").read_text())[1]) >> 10  # type: ignore[index]


def written_of_near_copies(task: Any) -> tuple[list[Path], dict[str, Any]]:
    """Return what a unit of the rule near_duplicates writes and counts, until the last round leaves nothing."""
    if not isinstance(task, RangeTask):
        documents = task.chunk.bytes // BYTES_PER_DOCUMENT
        paths = [task.path.with_suffix(".npy"), task.path.with_name(f"{task.path.name}-edges.npy")]
        return paths, {"keys": 14 * documents, "edges": documents // 10, "bytes": task.chunk.bytes}
    kind, number = task.path.stem.split("-")[:2]
    paths = [task.path]
    if kind in ("merged", "hook"):
        paths.append(task.path.with_name(f"{task.path.stem}-{'edges' if kind == 'merged' else 'left'}.npy"))
    going_on = 1000 * (int(number) + 1 < ROUNDS)
    clusters = {"clusters": 9000, "documents": 21_000, "sizes": {"2": 7000, "3-4": 2000}, "huge": {}}
    counts: dict[str, dict[str, Any]] = {
        "merged": {"keys": 1_000_000, "edges": 100_000},
        "joined": {"edges": 100_000},
        "hook": {"left": going_on},
        "jump": {"moved": going_on},
        "settled": {"near_duplicates": clusters},
    }
    return paths, counts.get(kind, {})


def written(unit: Unit) -> tuple[list[Path], dict[str, Any]]:
    """Return what a unit of English web text writes and counts."""
    task = unit.argument
    if unit.step == "near":
        return written_of_near_copies(task)
    if unit.step == "paragraphs":
        if isinstance(task, RangeTask):
            return [task.path], {"repeated_paragraphs": 100_000}
        return [task.path.with_suffix(".npy")], {"paragraphs": task.chunk.bytes // 500, "bytes": task.chunk.bytes}
    if unit.step == "extract":
        parts = -(-task.chunk.bytes // PART_CHARACTERS)
        documents = task.chunk.bytes // BYTES_PER_DOCUMENT
        counts = {"documents": {"0": documents}, "bytes": task.chunk.bytes, "characters": task.chunk.bytes}
        names = [f"{task.number:06d}-{index}" for index in range(EXAMPLES)]
        rules = ("mojibake", "repeated_lines", "length")
        counts["examples"] = {rule: {name: f"parts/{name}.jsonl byte {name}" for name in names} for rule in rules}
        counts["rules"] = {rule: {"documents": 9, "paragraphs": 31, "characters": 5120} for rule in rules}
        counts |= {"problems": {"oversized_documents": 1}, "empty_documents": 2, "sentences": documents * 22}
        return [task.path.with_name(f"{task.path.name}-{part:03d}.arrow") for part in range(parts)], counts
    if unit.step == "tokens":
        tokens = int(PART_CHARACTERS * 0.9 / BYTES_PER_TOKEN)
        numbers = dict.fromkeys(("unknown_tokens", "empty_sentences", "documents_without_tokens"), 3)
        counts = {
            "documents": [5400, 110],
            "tokens": tokens,
            "tokens_by_source": {"0": tokens},
            "bytes": PART_CHARACTERS,
        }
        return [task.path], counts | numbers | {"one_sentence_documents": 31}
    if unit.step == "chunks":
        return [task.file.path], {"tokens": 4_000_000 * task.file.cells}
    if unit.step == "documents":
        sizes = {"sentences": 176_000, "tokens": BUCKET_TOKENS, "one_sentence_documents": 50}
        by_source = {"documents_by_source": {"0": 8000}, "tokens_by_source": {"0": BUCKET_TOKENS}}
        return [task.path], {"documents": {task.split: 8000}, **by_source, **sizes}
    rows = 50_000 * task.buckets
    names = ("random_next", "random_next_tokens", "full_length", "shown_as_mask", "shown_as_original", "unknown_tokens")
    counts = {"rows": rows, "tokens": 120 * rows, "masked_tokens": 18 * rows, **dict.fromkeys(names, rows)}
    return [task.path, lengths_path(task.path)], counts | {"length_histogram": [rows // LENGTH_BINS] * LENGTH_BINS}


class SyntheticRanks(Executor):
    """Answers for the other ranks of a world, and knows how long that took."""

    def __init__(self, ranks: int) -> None:
        """Take the number of ranks."""
        self._ranks = ranks
        self.own_s, self.messages, self.bytes, self.opens, self.most_opened = 0.0, 0, 0, 0, 0
        self.units: Counter[str] = Counter()

    @property
    def workers(self) -> int:
        """Ranks that do units."""
        return self._ranks - 1

    def run(self, function: Callable[[Any], Any], tasks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """Yield an answer for each task, as if it had been done."""
        for index, task in enumerate(tasks):
            message = pickle.dumps((function, [task]))
            start = time.process_time()
            answer = pickle.dumps(self._answer(function, task))
            self.messages, self.bytes = self.messages + 1, self.bytes + len(message) + len(answer)
            self.own_s += time.process_time() - start
            yield index, pickle.loads(answer)

    def _answer(self, function: Callable[[Any], Any], task: Any) -> Any:
        if isinstance(task, CheckTask):
            return function(task)
        sources = getattr(task.argument, "sources", ())
        self.opens, self.most_opened = self.opens + len(sources), max(self.most_opened, len(sources))
        self.units[task.step] += 1
        paths, counts = written(task)
        files = {str(path.relative_to(task.root)): FileRecord(9_000_000, DIGEST) for path in paths}
        outcome = Outcome(files, counts)
        keep = function.keywords["keep"]
        return Done(
            task.step, task.group, outcome.line(task.name, task.context), counts, keep(outcome) if keep else None
        )


class Clock:
    """CPU seconds of this process without those of the synthetic ranks."""

    def __init__(self, ranks: SyntheticRanks) -> None:
        """Start."""
        self._ranks, self.lines = ranks, []
        self.restart()

    def restart(self) -> None:
        """Begin to measure here."""
        self._before = time.process_time() - self._ranks.own_s
        Path("/proc/self/clear_refs").write_text("5")

    def stop(self, name: str) -> float:
        """Print the seconds and the peak of memory since the last stop."""
        seconds = time.process_time() - self._ranks.own_s - self._before
        self.lines.append(f"{name:<42}{seconds:8.1f} CPU s{memory_mib('VmHWM'):8,} MiB at the peak")
        print(self.lines[-1], flush=True)
        self.restart()
        return seconds


def documents(build: RunningBuild, files: list[InputFile], clock: Clock | None) -> tuple[Any, int]:
    """Run steps 1 and 3 to 5 as the pipeline does; return the counts of the corpus and the buckets of a shard."""

    def stop(name: str) -> None:
        if clock:
            clock.stop(name)

    texts, extracted = extract_documents(build, files)
    stop(f"extract, {len(texts):,} files of text")
    # A corpus of more documents than can be ranked is split by their draws alone (`data_prep.steps.step3_tokens`).
    chunks, tokenized = tokenize_documents(build, texts, int(build.config.validation_share * 2**64))
    stop("tokenize")
    buckets = count_buckets(build.config, tokenized)
    merged = merge_chunks(build, chunks, buckets["train"], 30_522)
    stop(f"merge, {merged.blocks * merged.files:,} files at last")
    kept = fill_buckets(build, merged, buckets, 30_522)
    stop(f"buckets {buckets} and index")
    corpus = corpus_counts(build.config, extracted, tokenized, kept)
    return corpus, count_buckets_per_shard(build.config, buckets["train"], corpus["tokens"], 30_522)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--terabytes", type=float, default=10)
    parser.add_argument("--ranks", type=int, default=1000)
    text = "with the rule duplicate_paragraphs; a paragraph of 100 characters or more for 500 bytes of text"
    parser.add_argument("--duplicate-paragraphs", action="store_true", help=text)
    parser.add_argument("--near-duplicates", action="store_true", help="with the rule near_duplicates")
    options = parser.parse_args()
    ranks = SyntheticRanks(options.ranks)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "out"
        sources = (SourceConfig(input="parts/*.jsonl", name="web"),)
        rules = ["mojibake", "repeated_lines", "length"]
        if options.near_duplicates:
            rules += ["near_duplicates", "duplicate_documents"]
        if options.duplicate_paragraphs:
            rules += ["duplicate_paragraphs"]
        config = BuildConfig(sources=sources, clean=CleanConfig(rules=tuple(rules)))
        small = BuildConfig(sources=(SourceConfig(input=str(CORPUS)),), vocab_size=4096, lengths=(128,), dupe_factor=1)
        build_shards(small, Path(folder) / "small", Executor())  # for a tokenizer
        root.mkdir()
        (Path(folder) / "small" / "tokenizer").rename(root / "tokenizer")
        build = RunningBuild(root, config, ranks, BuildState(to_dict(config), [], installed_versions(config)))
        number = int(options.terabytes * 1e12 / FILE_BYTES)
        files = [InputFile(f"parts/{n:06d}.jsonl", FILE_BYTES, 0, "jsonl", "utf-8", "text") for n in range(number)]
        measure(build, ranks, files, options)


def measure(build: RunningBuild, ranks: SyntheticRanks, files: list[InputFile], options: argparse.Namespace) -> None:
    """Do all that rank 0 does, then twice what it does after a restart."""
    print(
        f"{options.terabytes:g} TB in {len(files):,} files, {options.ranks:,} ranks; {memory_mib('VmRSS')} MiB before"
    )
    clock = Clock(ranks)
    first = time.process_time() - ranks.own_s
    corpus, buckets_per_shard = documents(build, files, clock)
    manifests = make_instances(build, corpus, buckets_per_shard)
    clock.stop(f"instances, {buckets_per_shard} buckets per shard, manifests")
    seconds = time.process_time() - ranks.own_s - first
    print(f"all: {seconds:.1f} CPU s; messages {ranks.messages:,}, {ranks.bytes:,} bytes")
    print(
        f"units: {dict(ranks.units)}; inputs opened by merges, buckets and comparisons of paragraphs {ranks.opens:,}, "
        f"{ranks.most_opened} by one"
    )
    for length, manifest in manifests.items():
        folder = build.path("instances", str(length))
        for shard in manifest.shards:
            (folder / shard.file).touch()
        clock.restart()
        read_manifest(folder)
        size = (folder / "manifest.json").stat().st_size
        clock.stop(f"a reader opens {len(manifest.shards):,} shards, {size >> 20} MiB")
    # The files are not there: the ranks find them sound, and what they take for that is not counted.
    records._is_sound = lambda path, record: True
    ranks.units.clear()
    documents(build, files, None)
    clock.stop("restart with the documents made, unplanned")
    make_instances(build, corpus, buckets_per_shard)
    clock.stop("restart with the instances made")
    assert not ranks.units, "a unit was done again"
    sizes = {path.name: path.stat().st_size >> 20 for path in build.path("work", "records").glob("*.jsonl")}
    print("records, MiB:", json.dumps(sizes))


if __name__ == "__main__":
    main()
