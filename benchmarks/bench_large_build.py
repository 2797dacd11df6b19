"""One whole build of gigabytes: memory of the workers by step, disk at the peak and what was said before, time.

    python -m benchmarks.bench_large_build --input FILE.jsonl ... --weighted FILE.jsonl --output DIR [--gigabytes 2]

The corpus is the input, repeated with a line of its own for each copy of a document until it is large enough, so that
nothing is a duplicate. A vocabulary is trained in the build. The documents of --weighted are a source of their own,
which counts sixty times. A worker's peak is the kernel's (VmHWM), reset for each unit; disk is looked at five times a
second. The shards are verified at the end and stay in --output.
"""

import argparse
import os
import sys
import tempfile
import threading
import time
from pathlib import Path

from benchmarks.bench_memory import LIMIT_MIB, MeasuringExecutor, write_corpora
from data_prep.checks.verify import verify
from data_prep.config.build import BuildConfig, SourceConfig
from data_prep.extract.inputs import find_files
from data_prep.pipeline import build_shards
from data_prep.planning.estimate import estimate, shown

LOOK_S = 0.2


class DiskPeak(threading.Thread):
    """Looks how much a folder takes, as it grows and shrinks."""

    def __init__(self, folder: Path) -> None:
        """Take the folder, which may not be there yet."""
        super().__init__(daemon=True)
        self._folder, self.bytes = folder, 0

    def run(self) -> None:
        """Look until the process ends."""
        while True:
            self.bytes = max(self.bytes, size_of(self._folder))
            time.sleep(LOOK_S)


def size_of(folder: Path) -> int:
    """Return the bytes of all files below a folder; those that vanish meanwhile are not counted."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(parent, name)).st_size
            except OSError:
                continue
    return total


def main() -> None:
    """Build, verify and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", type=Path, nargs="+", required=True, help="JSON Lines")
    parser.add_argument("--weighted", type=Path, help="JSON Lines of a source that counts --weight times")
    parser.add_argument("--weight", type=float, default=60.0)
    parser.add_argument("--output", type=Path, required=True, help="folder of the build, which stays")
    parser.add_argument("--gigabytes", type=float, default=2.0, help="text of the corpus")
    parser.add_argument("--dupe-factor", type=int, default=2)
    parser.add_argument("--vocab-size", type=int, default=30_522)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    os.environ.update(OMP_NUM_THREADS="1", RAYON_NUM_THREADS="1")
    with tempfile.TemporaryDirectory(dir=arguments.output.parent) as folder:
        size = arguments.gigabytes * 1e9
        _, corpus = write_corpora(arguments.input, Path(folder), size / 1000, 1000)
        sources = [SourceConfig(input=str(corpus), name="text")]
        if arguments.weighted:
            sources.append(SourceConfig(input=str(arguments.weighted), name="weighted", weight=arguments.weight))
        config = BuildConfig(sources=tuple(sources), vocab_size=arguments.vocab_size, dupe_factor=arguments.dupe_factor)
        measure(config, arguments)


def measure(config: BuildConfig, arguments: argparse.Namespace) -> None:
    """Build and verify; print what it took."""
    files = find_files(config.sources)
    said = estimate(config, files, arguments.workers)
    disk, peaks = DiskPeak(arguments.output), {}
    disk.start()
    wall, cpu = time.monotonic(), sum(os.times()[:4])
    built = build_shards(config, arguments.output, MeasuringExecutor(arguments.workers, peaks))
    wall, cpu = time.monotonic() - wall, sum(os.times()[:4]) - cpu
    corpus = next(iter(built.manifests.values())).statistics["corpus"]
    stored = sum(file.bytes for file in files)
    print(
        f"{stored / 1e6:,.0f} MB of JSON Lines, {corpus['documents']:,} documents after weights, {corpus['tokens']:,} "
        f"tokens: {wall:.0f} s, {cpu:.0f} CPU s with {arguments.workers} workers"
    )
    print(
        f"disk: {shown(disk.bytes)} at the peak (said before: {shown(said.peak_bytes)}), "
        f"{shown(size_of(arguments.output))} at the end (said: {shown(said.end_bytes)})"
    )
    with MeasuringExecutor(arguments.workers, peaks) as executor:
        for length in config.lengths:
            verdict = verify(built.folder / "instances" / str(length), executor)
            assert verdict.problems == [], verdict.problems
            print(f"length {length}: {verdict.shards} shards, {verdict.instances:,} instances, verified")
    print(f"{'peak of a worker':28s} {'MiB':>6s}   anonymous, files")
    for step, memory in peaks.items():
        print(f"{step:28s} {memory['VmHWM']:6.0f}   {memory['RssAnon']:6.0f} {memory['RssFile']:6.0f}")
    most = max(memory["VmHWM"] for memory in peaks.values())
    print(f"{'all':28s} {most:6.0f}   at most {LIMIT_MIB}")
    sys.exit(most > LIMIT_MIB)


if __name__ == "__main__":
    main()
