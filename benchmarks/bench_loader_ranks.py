"""What one rank's loader costs a step, as the same global batch is shared by more and more ranks.

    python benchmarks/bench_loader_ranks.py --shards data/mine/instances/128 --scratch /scratch [--gib 2]

The shards are repeated until they take the wanted space (delete them afterwards), and dropped from the cache before
each row of the table. A row is a process of its own that makes a few whole steps as one of N ranks; no other
rank runs. CPU time is that of the process on all its threads, bytes are those that the disk delivered (``read_bytes``
of ``/proc/self/io``), memory is the growth of anonymous pages since the first step, and all of the process's. Real
tokens are those of the padded micro-batches that are no padding.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

WORLDS = (1, 8, 64, 256, 1024)
SHARD_ROWS = 50_000
"""Instances of a bucket of 5 million tokens, which is what a build makes a shard of."""


def copy_shards(source: Path, folder: Path, gib: float) -> None:
    """Fill a folder with shards as large as a build's: the training rows of another one, again and again."""
    from megabert.foundation.files import sha256_file
    from megabert.tokens.shards.checked_shards import complete_index
    from megabert.tokens.shards.folder import ShardEntry, lengths_path, read_manifest, write_manifest
    from megabert.tokens.shards.format import rows_per_batch
    from megabert.tokens.shards.shard_set import ShardSet

    manifest = read_manifest(source)
    tables = [pa.ipc.open_file(source / entry.file).read_all() for entry in manifest.of_split("train")]
    table = pa.concat_tables(tables)[:SHARD_ROWS].combine_chunks()
    shutil.copytree(source / "tokenizer", folder / "tokenizer")
    first = folder / "train-00000.arrow"
    with pa.ipc.new_file(str(first), table.schema) as writer:
        writer.write_table(table, rows_per_batch(manifest.metadata.max_seq_length))
    tokens, masked = (len(table[name].combine_chunks().flatten()) for name in ("input_ids", "masked_lm_ids"))
    entry = ShardEntry(first.name, "train", len(table), tokens, masked, sha256_file(first), 0, 0)
    write_manifest(folder, replace(manifest, shards=[entry]))
    complete_index(ShardSet.open(folder))
    entries = [entry]
    while len(entries) * first.stat().st_size < gib * 2**30:
        path = folder / f"train-{len(entries):05d}.arrow"
        shutil.copyfile(first, path)
        shutil.copyfile(lengths_path(first), lengths_path(path))
        entries.append(replace(entry, file=path.name))
    write_manifest(folder, replace(manifest, shards=entries))


def drop_from_cache(folder: Path) -> None:
    """Let the next reader find nothing of a folder in memory."""
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def status_of(key: str, path: str) -> int:
    """Return a number from a file of ``/proc/self``."""
    return next(int(line.split()[1]) for line in Path(path).read_text().splitlines() if line.startswith(key))


def measure(
    folder: Path, *, world_size: int, batch_size: int, steps: int, micro_batch_tokens: int
) -> dict[str, object]:
    """Make steps as the last of ``ranks`` ranks; the first step is not counted, because it compiles and opens."""
    from megabert.data.mixture import Mixture
    from megabert.data.packing import RankShare, shape_for
    from megabert.data.step_packer import StepPacker
    from megabert.tokens.shards.shard_set import ShardSet

    shards = ShardSet.open(folder)
    shape = shape_for(
        shards.statistics,
        global_batch_size=batch_size,
        world_size=world_size,
        micro_batch_tokens=micro_batch_tokens,
    )
    share = RankShare(shape=shape, rank=world_size - 1, world_size=world_size, pad=True)
    packer = StepPacker(Mixture((shards,)), seed=1, global_batch_size=batch_size, share=share)
    positions = packer.pack({}, 1).positions_after
    memory = peak = status_of("RssAnon", "/proc/self/status")
    times, begin, read = [], time.perf_counter(), read_bytes()
    instances = tokens = padded = 0
    for number in range(2, steps + 2):
        cpu = time.process_time()
        step = packer.pack(positions, number)
        times.append(time.process_time() - cpu)
        positions = step.positions_after
        instances += sum(micro_batch.num_instances for micro_batch in step.micro_batches)
        tokens += sum(micro_batch.num_tokens for micro_batch in step.micro_batches)
        padded += sum(micro_batch.input_ids_T.numel() for micro_batch in step.micro_batches)
        peak = max(peak, status_of("RssAnon", "/proc/self/status"))
    return {
        "ranks": world_size,
        "instances of the rank": round(instances / steps, 1),
        "CPU ms a step, least": round(1e3 * min(times), 1),
        "CPU ms a step, mean": round(1e3 * sum(times) / steps, 1),
        "wall ms a step": round(1e3 * (time.perf_counter() - begin) / steps, 1),
        "MB read a step": round((read_bytes() - read) / 1e6 / steps, 2),
        "MiB held": round((peak - memory) / 1024, 1),
        "MiB in all": round(peak / 1024),
        "real tokens, %": round(100 * tokens / padded, 2),
    }


def read_bytes() -> int:
    """Return how many bytes this process had the disk deliver."""
    return status_of("read_bytes", "/proc/self/io")


def main() -> None:
    """Print one JSON line for each number of ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=Path, required=True, help="folder of instance shards")
    parser.add_argument("--scratch", type=Path, help="new folder for the copies; default: measure --shards themselves")
    parser.add_argument("--gib", type=float, default=2.0, help="size of the copies (default 2)")
    parser.add_argument("--global-batch-size", type=int, default=65_536, help="instances a step (default 65536)")
    parser.add_argument(
        "--micro-batch-tokens", type=int, default=65_536, help="tokens of a micro-batch (default 65536)"
    )
    parser.add_argument("--steps", type=int, default=8, help="steps that are counted (default 8)")
    parser.add_argument("--world-sizes", type=int, nargs="+", default=WORLDS, help="numbers of ranks")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        sizes = {
            "batch_size": options.global_batch_size,
            "steps": options.steps,
            "micro_batch_tokens": options.micro_batch_tokens,
        }
        print(json.dumps(measure(options.shards, world_size=options.world_sizes[0], **sizes)))
        return
    folder = options.scratch or options.shards
    if options.scratch is not None:
        options.scratch.mkdir(parents=True)
        copy_shards(options.shards, folder, options.gib)
    for world_size in options.world_sizes:
        drop_from_cache(folder)
        command = [sys.executable, __file__, "--child", "--shards", str(folder)]
        command += ["--global-batch-size", str(options.global_batch_size), "--steps", str(options.steps)]
        command += ["--micro-batch-tokens", str(options.micro_batch_tokens)]
        subprocess.run([*command, "--world-sizes", str(world_size)], check=True)


if __name__ == "__main__":
    main()
