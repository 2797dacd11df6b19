"""Small shards written straight through the schema, with instances that look like real ones."""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from megabert.foundation.files import sha256_file
from megabert.tokens.shards.folder import Manifest, ShardEntry, write_manifest
from megabert.tokens.shards.format import ShardMetadata, instance_schema, rows_per_batch, token_type

SPECIAL_IDS = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}


@dataclass(frozen=True)
class Instance:
    """One row, as Python values."""

    input_ids: list[int]
    segment_b_start: int
    masked_lm_positions: list[int]
    masked_lm_ids: list[int]
    next_sentence_label: int


def make_metadata(**changes: Any) -> ShardMetadata:
    """Return the metadata of small shards; ``changes`` has the fields that differ."""
    fields: dict[str, Any] = {
        **{"objective": "nsp", "pairing": "balanced", "masking": "static", "mask_unit": "token", "seed": 0},
        **{"max_seq_length": 32, "max_predictions_per_seq": 5, "masked_lm_prob": 0.15, "vocab_size": 1000},
        **{"tokenizer_sha256": "0" * 64, "special_ids": SPECIAL_IDS},
    }
    return ShardMetadata(**{**fields, **changes})


def make_instances(count: int, length: int, vocab_size: int, seed: int, objective: str = "nsp") -> list[Instance]:
    """Three quarters of full length, the rest spread evenly, as google's pairing gives."""
    rng = np.random.default_rng(seed)
    instances = []
    for _ in range(count):
        size = length if rng.random() < 0.75 else int(rng.integers(5, length + 1))
        ids = rng.integers(5, vocab_size, size)
        b_start = size if objective == "none" else int(rng.integers(3, size - 1))
        ids[0], ids[-1], ids[b_start - 1] = SPECIAL_IDS["cls"], SPECIAL_IDS["sep"], SPECIAL_IDS["sep"]
        positions = np.sort(rng.choice(np.arange(1, size), max(1, round(size * 0.15)), replace=False))
        label = 0 if objective == "none" else int(rng.integers(0, 2))
        instances.append(Instance(ids.tolist(), b_start, positions.tolist(), ids[positions].tolist(), label))
    return instances


def write_shards(
    folder: Path,
    shards: dict[str, list[list[Instance]]],
    *,
    length: int = 32,
    vocab_size: int = 1000,
    batch_rows: int | None = None,
    compression: str | None = None,
    **changes: Any,
) -> Path:
    """Write shards by split, and their manifest; by default as a build lays them out."""
    sizes = {"max_seq_length": length, "max_predictions_per_seq": max(1, round(length * 0.15))}
    metadata = make_metadata(vocab_size=vocab_size, **sizes, **changes)
    batch_rows = batch_rows or rows_per_batch(length)
    schema, token = instance_schema(metadata), token_type(vocab_size)
    options = pa.ipc.IpcWriteOptions(compression=compression)
    folder.mkdir(parents=True, exist_ok=True)
    entries = []
    for split, groups in shards.items():
        for number, rows in enumerate(groups):
            path = folder / f"{split}-{number:05d}.arrow"
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema, options=options) as writer:
                for first in range(0, len(rows), batch_rows):
                    part = rows[first : first + batch_rows]
                    columns = [
                        pa.array([r.input_ids for r in part], pa.list_(token)),
                        pa.array([r.segment_b_start for r in part], pa.uint16()),
                        pa.array([r.masked_lm_positions for r in part], pa.list_(pa.uint16())),
                        pa.array([r.masked_lm_ids for r in part], pa.list_(token)),
                        pa.array([r.next_sentence_label for r in part], pa.uint8()),
                    ]
                    writer.write_batch(pa.record_batch(columns, schema=schema))
            tokens = sum(len(r.input_ids) for r in rows)
            masked = sum(len(r.masked_lm_positions) for r in rows)
            entries.append(ShardEntry(path.name, split, len(rows), tokens, masked, sha256_file(path), number, 0))
    write_manifest(folder, Manifest(metadata=metadata, shards=entries))
    return folder


def split_unevenly(instances: list[Instance], shards: int) -> list[list[Instance]]:
    """Cut into shards of different sizes."""
    cuts = [len(instances) * i * i // (shards * shards) for i in range(shards + 1)]
    return [instances[a:b] for a, b in pairwise(cuts)]
