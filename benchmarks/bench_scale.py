"""Microseconds an instance of pairing and assembly as a corpus grows to 500 GB, files cached and not.

    python benchmarks/bench_scale.py [DOCUMENTS] [--gigabytes 0.45 9 24 95 500] [--units 12]

DOCUMENTS is `documents/` of a finished build (its `tokenizer/` next to it); by default one is built of the bundled
corpus. A larger corpus is simulated by buckets that are links to the real ones in turn, with an index over all of them;
the functions are those of a build. Every size does the same real buckets in turn, so each is compared with the first on
the same text and in the same minutes. CPU seconds of this process; `cold` drops the real files from the page cache
before each unit, so that reading them is part of it. Nothing is kept from one unit to the next, which is the worst
case: a worker that does neighbouring units finds some buckets walked.
"""

import argparse
import os
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from data_prep.cli import main as megabert_data
from data_prep.documents.document_set import DocumentSet, bucket_path, index_path
from data_prep.instances.pairs import (
    PairOptions,
    assemble,
    make_pairs,
)
from megabert.tokens.shards.format import ShardMetadata
from megabert.tokens.tokenization import load_tokenizer

CORPUS = Path(__file__).parents[1] / "examples" / "corpus" / "public_domain.jsonl"
GIGABYTES_PER_TOKEN = 4.4e-9  # English in 30,522 pieces


@dataclass
class Cost:
    """What the units of one size took."""

    documents: DocumentSet
    instances: int = 0
    seconds: float = 0.0
    wall_s: float = 0.0
    opened: list[int] = field(default_factory=list)
    """Buckets that each unit opened, again after another one included."""

    def us(self, seconds: float) -> float:
        """Return microseconds an instance."""
        return 1e6 * seconds / max(self.instances, 1)


def simulate(real: DocumentSet, gigabytes: float, folder: Path) -> DocumentSet:
    """Return a split of about ``gigabytes`` of text, whose buckets are links to those of a real one."""
    sizes = np.diff(real.bucket_starts, axis=0)
    buckets = max(1, round(gigabytes / (sizes[:, 2].mean() * GIGABYTES_PER_TOKEN)))
    folder.mkdir()
    for number in range(buckets):
        target = bucket_path(real.folder, real.split, number % len(sizes)).resolve()
        bucket_path(folder, real.split, number).symlink_to(target)
    sizes = sizes[np.arange(buckets) % len(sizes)]
    np.save(index_path(folder, real.split), np.concatenate([np.zeros((1, 3), np.int64), np.cumsum(sizes, axis=0)]))
    return DocumentSet.open(folder, real.split, real.vocab_size)


def forget(real: DocumentSet) -> None:
    """Drop the real buckets from the page cache."""
    for number in range(real.num_buckets):
        handle = os.open(bucket_path(real.folder, real.split, number), os.O_RDONLY)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def do_unit(cost: Cost, bucket: int, options: PairOptions, tokenizer: Path) -> None:
    """Make the pairs of a bucket and put their text together, as a build does before it masks."""
    cost.documents.plans.clear()
    cost.documents._opened.clear()
    opened, read = [], DocumentSet._open_bucket
    DocumentSet._open_bucket = lambda documents, bucket: opened.append(bucket) or read(documents, bucket)
    cpu, wall = time.process_time(), time.perf_counter()
    pairs = make_pairs(cost.documents, bucket, options, tokenizer)
    assemble(cost.documents, pairs, options.metadata)
    cost.seconds += time.process_time() - cpu
    cost.wall_s += time.perf_counter() - wall
    DocumentSet._open_bucket = read
    cost.instances += pairs.size
    cost.opened.append(len(opened))


def measure(real: DocumentSet, tokenizer: Path, gigabytes: list[float], units: int) -> None:
    """Print a table for each pairing and length."""
    loaded = load_tokenizer(tokenizer)
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory(prefix="megabert-scale-") as links:
        sizes = [simulate(real, size, Path(links) / str(index)) for index, size in enumerate(gigabytes)]
        for pairing, length in (("balanced", 128), ("balanced", 512), ("google", 128)):
            metadata = ShardMetadata(
                objective="nsp", pairing=pairing, masking="static", mask_unit="token", max_seq_length=length,
                max_predictions_per_seq=20, seed=0, tokenizer_sha256=loaded.sha256,
                special_ids=loaded.special_ids._asdict(), vocab_size=loaded.vocab_size, masked_lm_prob=0.15,
            )  # fmt: skip
            print(f"{pairing}, length {length}")
            print(f"{'text':>9s} {'buckets':>8s} {'index':>9s} {'opened':>8s} {'hot us':>8s} {'ratio':>6s}", end="")
            print(f" {'cold us':>8s} {'ratio':>6s} {'cold us on the clock':>21s}")
            tables = {is_cold: [Cost(documents) for documents in sizes] for is_cold in (False, True)}
            for unit in range(-1, units):
                options = PairOptions(metadata=metadata, short_seq_prob=0.1, pass_number=max(unit, 0))
                number = int(rng.integers(real.num_buckets))
                for is_cold, costs in tables.items():
                    for cost in costs:
                        if is_cold:
                            forget(real)
                        copies = -(-(cost.documents.num_buckets - number) // real.num_buckets)
                        bucket = number + real.num_buckets * int(rng.integers(copies)) if copies > 0 else 0
                        do_unit(Cost(cost.documents) if unit < 0 else cost, bucket, options, tokenizer)
            for size, hot, cold in zip(gigabytes, *tables.values(), strict=True):
                index = index_path(hot.documents.folder, real.split).stat().st_size / 1e6
                ratios = [cost.us(cost.seconds) / costs[0].us(costs[0].seconds)
                          for cost, costs in zip((hot, cold), tables.values(), strict=True)]  # fmt: skip
                print(
                    f"{size:6.2f} GB {hot.documents.num_buckets:8d} {index:6.2f} MB {np.mean(hot.opened):8.1f} "
                    f"{hot.us(hot.seconds):8.3f} {ratios[0]:6.2f} {cold.us(cold.seconds):8.3f} {ratios[1]:6.2f} "
                    f"{cold.us(cold.wall_s):21.3f}"
                )
            print(f"{units} units a size, {tables[False][0].instances / units:,.0f} instances a unit", flush=True)


def main() -> None:
    """Measure the documents that are named, or build some."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("documents", nargs="?", type=Path, help="documents/ of a build (default: the bundled corpus')")
    parser.add_argument("--gigabytes", type=float, nargs="+", default=[0.45, 9, 24, 95, 500], help="sizes to simulate")
    parser.add_argument("--units", type=int, default=12, help="units measured of each size")
    arguments = parser.parse_args()
    os.environ.update(OMP_NUM_THREADS="1", RAYON_NUM_THREADS="1")
    with tempfile.TemporaryDirectory() as built:
        if arguments.documents is None:
            build = ["build", "--input", str(CORPUS), "--output", built, "--vocab-size", "8192", "--lengths", "128"]
            if megabert_data([*build, "--workers", "1"]):
                sys.exit(1)
        folder = arguments.documents or Path(built) / "documents"
        real = DocumentSet.open(folder, "train", load_tokenizer(folder.parent / "tokenizer").vocab_size)
        measure(real, folder.parent / "tokenizer", arguments.gigabytes, arguments.units)


if __name__ == "__main__":
    main()
