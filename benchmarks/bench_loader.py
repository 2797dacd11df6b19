"""Sequences per second from instance shards into packed micro-batches, on one core.

    python benchmarks/bench_loader.py [--shards FOLDER] [--length 128] [--global-batch-size 4096] ...

Without ``--shards`` it writes shards of random instances with the lengths of google's pairing (three quarters of full
length, the rest spread evenly; 15% masked) to a temporary folder first. One process, pinned to one core where the
system allows; the loader's thread and the consumer share it. The bar is 300,000 sequences a second at length 128.
"""

import argparse
import cProfile
import json
import os
import platform
import pstats
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from megabert.data.loader import PackedLoader
from megabert.data.mixture import Mixture, Positions
from megabert.data.packing import RankShare, shape_for
from megabert.data.step_packer import StepPacker
from megabert.foundation.files import sha256_file
from megabert.tokens.shards.checked_shards import complete_index
from megabert.tokens.shards.folder import Manifest, ShardEntry, write_manifest
from megabert.tokens.shards.format import ShardMetadata, instance_schema, rows_per_batch, token_type
from megabert.tokens.shards.shard_set import ShardSet

SPECIAL_IDS = {"pad": 0, "unk": 100, "cls": 101, "sep": 102, "mask": 103}
VOCAB_SIZE = 30_522


def write_random_shards(folder: Path, rows: int, length: int, shards: int = 4) -> None:
    """Write shards of random tokens, Zipf distributed so that they compress like text."""
    metadata = ShardMetadata(
        objective="nsp",
        pairing="google",
        masking="static",
        mask_unit="token",
        max_seq_length=length,
        max_predictions_per_seq=round(length * 0.15) + 1,
        seed=0,
        tokenizer_sha256="0" * 64,
        special_ids=SPECIAL_IDS,
        vocab_size=VOCAB_SIZE,
        masked_lm_prob=0.15,
    )
    rng = np.random.default_rng(0)
    schema, token = instance_schema(metadata), token_type(VOCAB_SIZE)
    entries = []
    for number in range(shards):
        path, count = folder / f"train-{number:05d}.arrow", rows // shards
        tokens = masked = 0
        rows_each = rows_per_batch(length)
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            for first in range(0, count, rows_each):
                n = min(rows_each, count - first)
                lengths = np.where(rng.random(n) < 0.75, length, rng.integers(5, length + 1, n))
                counts = np.maximum(1, np.round(lengths * 0.15)).astype(np.int64)
                starts, masked_starts = (
                    np.concatenate([[0], np.cumsum(c)]).astype(np.int32) for c in (lengths, counts)
                )
                ids = np.minimum(rng.zipf(1.2, starts[-1]) + 103, VOCAB_SIZE - 1).astype(np.uint16)
                places = np.arange(masked_starts[-1]) - np.repeat(masked_starts[:-1], counts)
                places = (places * np.repeat(lengths / counts, counts)).astype(np.uint16)
                masked_ids = pa.array(ids[np.repeat(starts[:-1], counts) + places], token)
                columns = [
                    pa.ListArray.from_arrays(starts, pa.array(ids, token)),
                    pa.array(np.clip(lengths * rng.uniform(0.3, 0.7, n), 3, lengths - 2).astype(np.uint16)),
                    pa.ListArray.from_arrays(masked_starts, pa.array(places)),
                    pa.ListArray.from_arrays(masked_starts, masked_ids),
                    pa.array(rng.integers(0, 2, n).astype(np.uint8)),
                ]
                writer.write_batch(pa.record_batch(columns, schema=schema))
                tokens, masked = tokens + int(starts[-1]), masked + int(masked_starts[-1])
        entries.append(ShardEntry(path.name, "train", count, tokens, masked, sha256_file(path), number, 0))
    write_manifest(folder, Manifest(metadata=metadata, shards=entries))


def packer_of(shards: Mixture, arguments: argparse.Namespace) -> StepPacker:
    """Return what packs the share of rank 0."""
    shape = shape_for(
        shards.statistics,
        global_batch_size=arguments.global_batch_size,
        world_size=arguments.world_size,
        micro_batch_tokens=arguments.micro_batch_tokens,
    )
    share = RankShare(shape=shape, world_size=arguments.world_size, pad=True)
    return StepPacker(shards, seed=1, global_batch_size=arguments.global_batch_size, share=share)


def measure(shards: Mixture, arguments: argparse.Namespace) -> dict:
    """Time the loader over whole steps after two that warm up."""
    sequences = tokens = padded = steps = 0
    with PackedLoader(packer_of(shards, arguments)) as loader:
        for _ in range(2):
            next(loader)
        # The thread has begun the next step: its work so far falls outside, its successor's inside.
        wall, cpu = time.perf_counter(), time.process_time()
        while time.perf_counter() - wall < arguments.seconds:
            step = next(loader)
            steps += 1
            sequences += sum(b.num_instances for b in step.micro_batches)
            tokens += sum(b.num_tokens for b in step.micro_batches)
            padded += sum(b.input_ids_T.numel() for b in step.micro_batches)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {
        "length": shards.first.metadata.max_seq_length,
        "rows": shards.num_rows,
        "sources": len(shards.sources),
        "global_batch_size": arguments.global_batch_size,
        "world_size": arguments.world_size,
        "micro_batch_tokens": arguments.micro_batch_tokens,
        "steps": steps,
        "sequences_per_core_s": round(sequences / cpu),
        "sequences_per_s": round(sequences / wall),
        "tokens_per_core_s": round(tokens / cpu),
        "real_token_pct": round(100 * tokens / padded, 2),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }


def measure_in_turn(mixtures: dict[int, Mixture], arguments: argparse.Namespace) -> dict:
    """Return mean CPU seconds per step of several numbers of sources, one step of each in turn after two to warm up."""
    packers = {count: packer_of(mixture, arguments) for count, mixture in mixtures.items()}
    positions: dict[int, Positions] = {count: {} for count in packers}
    taken: dict[int, list[float]] = {count: [] for count in packers}
    begun = time.perf_counter()
    while time.perf_counter() - begun < arguments.seconds * len(packers) or len(taken[min(taken)]) < 3:
        for count, packer in packers.items():
            cpu = time.process_time()
            positions[count] = packer.pack(positions[count], len(taken[count]) + 1).positions_after
            taken[count].append(time.process_time() - cpu)
    means = {count: sum(own[2:]) / len(own[2:]) for count, own in taken.items()}
    first = means[next(iter(means))]
    return {
        "global_batch_size": arguments.global_batch_size,
        "steps": len(taken[min(taken)]) - 2,
        "cpu_ms_per_step": {count: round(1000 * mean, 1) for count, mean in means.items()},
        "rate_pct_of_first": {count: round(100 * first / mean, 1) for count, mean in means.items()},
    }


def main() -> None:
    """Run the measurement and print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=Path, help="folder of instance shards; default: random ones")
    parser.add_argument("--length", type=int, default=128, help="of the random instances (default 128)")
    parser.add_argument("--rows", type=int, default=400_000, help="random instances (default 400000)")
    sources = "builds that hold the random instances (default 1); several numbers are compared, a step of each in turn"
    parser.add_argument("--sources", type=int, nargs="+", default=[1], help=sources)
    parser.add_argument("--num-shards", type=int, default=4, help="shards of all builds together (default 4)")
    parser.add_argument("--global-batch-size", type=int, default=4096, help="instances a step (default 4096)")
    parser.add_argument("--world-size", type=int, default=1, help="ranks to pack for; one is measured (default 1)")
    parser.add_argument("--micro-batch-tokens", type=int, default=65_536, help="default 65536")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long to measure (default 10)")
    parser.add_argument("--profile", action="store_true", help="print where the loader's thread spends its time")
    arguments = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as temporary:
        mixtures = {count: open_random(Path(temporary) / str(count), count, arguments) for count in arguments.sources}
        if arguments.profile:
            profile_pack(mixtures[arguments.sources[0]], arguments)
        several = len(mixtures) > 1
        print(json.dumps(measure_in_turn(mixtures, arguments) if several else measure(*mixtures.values(), arguments)))


def open_random(folder: Path, count: int, arguments: argparse.Namespace) -> Mixture:
    """Write builds of random instances, unless shards are named, and open them."""
    folders = [folder / str(number) for number in range(count)]
    if arguments.shards is not None:
        folders = [arguments.shards]
    else:
        for number, own in enumerate(folders):  # each of another size: equal builds are one
            own.mkdir(parents=True)
            rows, num_shards = arguments.rows // count, arguments.num_shards // count
            write_random_shards(own, rows + number * num_shards, arguments.length, num_shards)
    sources = tuple(ShardSet.open(own) for own in folders)
    for source in sources:
        complete_index(source)
    return Mixture(sources, tuple(map(str, range(len(sources)))), tuple(source.num_rows for source in sources))


def profile_pack(shards: Mixture, arguments: argparse.Namespace) -> None:
    """Profile making steps on this thread, after a step that warms up."""
    packer = packer_of(shards, arguments)
    positions = packer.pack({}, 1).positions_after
    profile = cProfile.Profile()
    for number in range(2, 102):
        positions = profile.runcall(packer.pack, positions, number).positions_after
    pstats.Stats(profile).sort_stats("tottime").print_stats(18)


if __name__ == "__main__":
    main()
