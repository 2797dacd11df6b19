"""Peak memory of a worker, step by step, over a small corpus and a much larger one.

    python benchmarks/bench_memory.py [--input FILE.jsonl ...] [--small-mb 1] [--times 20] [--chunk-mib 0.25]

Both corpora are built by worker processes, their shards verified by others. A worker's peak is the kernel's (VmHWM,
pages of mapped files and of libraries included), reset for each unit; the table holds the largest of each step.
The small corpus is a sample of the input's documents; the large one is all of them, repeated with a line of their own
until it is large enough. Units have one size in both: --chunk-mib, and one bucket for a fixed number of megabytes.
"""

import argparse
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.checks.verify import verify
from data_prep.config.build import BuildConfig, SourceConfig
from data_prep.execution.executors import ProcessExecutor
from data_prep.execution.work_units import Unit
from data_prep.pipeline import build_shards

CORPUS = Path(__file__).parents[1] / "examples" / "corpus" / "public_domain.jsonl"
LIMIT_MIB = 512
ALLOWED_GROWTH = 0.1
LENGTHS = (128, 512)


def memory_mib(*names: str) -> dict[str, float]:
    """Return lines of this process's status."""
    status = Path("/proc/self/status").read_text()
    return {name: int(re.search(rf"{name}:\s+(\d+)", status)[1]) / 1024 for name in names}  # type: ignore[index]


@dataclass(frozen=True)
class Measured:
    """A function that also returns the step and the worker's peak while it ran."""

    function: Callable[[Any], Any]

    def __call__(self, task: Any) -> tuple[Any, str, dict[str, float]]:
        """Run it."""
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        result = self.function(task)
        name = getattr(self.function, "func", self.function).__name__.strip("_")  # of a part of a function as well
        step = task.step if isinstance(task, Unit) else name
        return result, step, memory_mib("VmHWM", "RssAnon", "RssFile")


class MeasuringExecutor(ProcessExecutor):
    """Worker processes whose peaks are kept by step."""

    def __init__(self, workers: int, peaks: dict[str, dict[str, float]]) -> None:
        """Take where the largest peaks are kept."""
        super().__init__(workers)
        self._peaks = peaks

    def run(self, function: Callable[[Any], Any], tasks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """Yield results as they finish."""
        for index, (result, step, memory) in super().run(Measured(function), tasks):
            known = self._peaks.setdefault(step, dict.fromkeys(memory, 0.0))
            self._peaks[step] = {name: max(value, known[name]) for name, value in memory.items()}
            yield index, result


def write_corpora(inputs: list[Path], folder: Path, small_bytes: float, times: int) -> tuple[Path, Path]:
    """Write the small corpus and the large one."""
    total = sum(path.stat().st_size for path in inputs)
    every = max(1, round(total / small_bytes))
    small, large = folder / "small.jsonl", folder / "large.jsonl"
    held = 0
    with open(small, "w", encoding="utf-8") as stream:
        for number, text in enumerate(_texts(inputs)):
            if number % every == 0:
                held += stream.write(_line(text))
    written, copy = 0, 0
    with open(large, "w", encoding="utf-8") as stream:
        while written < times * held:
            for number, text in enumerate(_texts(inputs)):
                written += stream.write(_line(f"{text}\nCopy {copy} of document {number}." if copy else text))
                if written >= times * held:
                    break
            copy += 1
    return small, large


def _texts(inputs: list[Path]) -> Iterator[str]:
    for path in inputs:
        with open(path, encoding="utf-8") as lines:
            for line in lines:
                yield json.loads(line)["text"]


def _line(text: str) -> str:
    return json.dumps({"text": text}) + "\n"


def peaks_of(corpus: Path, tokenizer: Path, arguments: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Build and verify a corpus; return the largest peak of a worker by step."""
    megabytes = corpus.stat().st_size / 1e6
    config = BuildConfig(
        sources=(SourceConfig(input=str(corpus)),),
        tokenizer=str(tokenizer),
        lengths=LENGTHS,
        dupe_factor=1,
        chunk_mib=arguments.chunk_mib,
        buckets=max(1, round(megabytes / arguments.bucket_mb)),
    )
    peaks: dict[str, dict[str, float]] = {}
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="megabert-memory-") as folder:
        built = build_shards(config, Path(folder) / "out", MeasuringExecutor(arguments.workers, peaks))
        with MeasuringExecutor(arguments.workers, peaks) as executor:
            for length in LENGTHS:
                verdict = verify(built.folder / "instances" / str(length), executor)
                assert verdict.problems == [], verdict.problems
        tokens = next(iter(built.manifests.values())).statistics["corpus"]["tokens"]
    print(
        f"{megabytes:.0f} MB, {tokens / 1e6:.1f} M tokens, {config.buckets} buckets: {time.monotonic() - start:.0f} s"
    )
    return peaks


def main() -> None:
    """Print both tables side by side."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", type=Path, nargs="+", default=[CORPUS], help="JSON Lines (default: the bundled)")
    parser.add_argument("--tokenizer", type=Path, help="default: a vocabulary of 8,192 pieces is trained first")
    parser.add_argument("--small-mb", type=float, default=1.0, help="size of the small corpus")
    parser.add_argument("--times", type=int, default=20, help="how much larger the large one is")
    parser.add_argument("--chunk-mib", type=float, default=0.25, help="text of a unit of reading")
    parser.add_argument("--bucket-mb", type=float, default=1.0, help="text of a bucket; 5 million tokens are about 24")
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    os.environ.update(OMP_NUM_THREADS="1", RAYON_NUM_THREADS="1")
    from data_prep.cli import main as megabert_data

    with tempfile.TemporaryDirectory() as folder:
        corpora = write_corpora(arguments.input, Path(folder), arguments.small_mb * 1e6, arguments.times)
        tokenizer = arguments.tokenizer or Path(folder) / "tokenizer"
        if arguments.tokenizer is None:
            megabert_data(["vocab", "--input", str(corpora[0]), "--output", str(tokenizer), "--vocab-size", "8192"])
        small, large = (peaks_of(corpus, tokenizer, arguments) for corpus in corpora)
    print(f"{'peak of a worker, MiB':28s} {'small':>8s} {'large':>8s}   after a unit of the large: anonymous, files")
    for step, memory in large.items():
        before = small.get(step, {}).get("VmHWM")
        print(
            f"{step:28s} {'-' if before is None else f'{before:.0f}':>8s} {memory['VmHWM']:8.0f}   "
            f"{memory['RssAnon']:6.0f} {memory['RssFile']:6.0f}"
        )
    first, last = (max(memory["VmHWM"] for memory in peaks.values()) for peaks in (small, large))
    print(f"{'all':28s} {first:8.0f} {last:8.0f}   {100 * (last / first - 1):+.1f}%")
    sys.exit(not (last <= LIMIT_MIB and last / first - 1 < ALLOWED_GROWTH))


if __name__ == "__main__":
    main()
