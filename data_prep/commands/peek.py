"""``megabert-data peek``."""

import argparse
from pathlib import Path

import numpy as np
import pyarrow as pa

from data_prep.arrow_files import open_mapped
from megabert.errors import DataError
from megabert.schema import ShardMetadata
from megabert.tokenization import Tokenizer, load_tokenizer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the verb."""
    parser.add_argument("place", metavar="SHARD:ROW", help="a shard's path and a row of it, from 0")
    parser.add_argument("--tokenizer", type=Path, help="folder (default: tokenizer/ beside the shard)")


def run(arguments: argparse.Namespace) -> int:
    """Print one instance."""
    path, _, row = arguments.place.rpartition(":")
    if not path or not row.isdigit():
        raise DataError(f"{arguments.place!r}: expected SHARD:ROW, such as train-00000-00.arrow:7.")
    batch, metadata = read_row(Path(path), int(row))
    tokenizer = load_tokenizer(arguments.tokenizer or Path(path).parent / "tokenizer")
    if tokenizer.sha256 != metadata.tokenizer_sha256:
        raise DataError(f"{tokenizer.where}: not the tokenizer of {path}. Give the right one with --tokenizer.")
    print("\n".join(describe(batch, metadata, tokenizer)))
    return 0


def read_row(path: Path, row: int) -> tuple[pa.RecordBatch, ShardMetadata]:
    """Return one row of a shard.

    Raises:
        DataError: No shard, or it has fewer rows.
    """
    reader = open_mapped(path)
    metadata = ShardMetadata.from_arrow(reader.schema, str(path))
    rest = row
    for index in range(reader.num_record_batches):
        batch = reader.get_batch(index)
        if rest < batch.num_rows:
            return batch.slice(rest, 1), metadata
        rest -= batch.num_rows
    raise DataError(f"{path}: has {row - rest:,} rows; row {row} is not among 0 to {row - rest - 1}.")


def describe(row: pa.RecordBatch, metadata: ShardMetadata, tokenizer: Tokenizer) -> list[str]:
    """Return lines that show an instance: segments with what each masked place shows and hides."""
    values = {name: column[0].as_py() for name, column in zip(row.schema.names, row.columns, strict=True)}
    ids, split = values["input_ids"], values["segment_b_start"]
    hidden = dict(zip(values["masked_lm_positions"], values["masked_lm_ids"], strict=True))
    shown = [
        f"{{{tokenizer.pieces[token]}<-{tokenizer.pieces[hidden[place]]}}}"
        if place in hidden
        else tokenizer.pieces[token]
        for place, token in enumerate(ids)
    ]
    original = np.array(ids)
    original[list(hidden)] = list(hidden.values())
    meaning = {
        "nsp": ("0: B follows A", "1: B is random"),
        "sop": ("0: in order", "1: swapped"),
        "none": ("0: no pair", "1: invalid"),
    }[metadata.objective][values["next_sentence_label"]]
    lines = [
        f"length {len(ids)} of {metadata.max_seq_length}, B starts at {split}, label {meaning}, "
        f"{len(hidden)} to predict (shown as {{piece<-original}})",
        f"A: {' '.join(shown[:split])}",
    ]
    if split < len(ids):
        lines.append(f"B: {' '.join(shown[split:])}")
    return [*lines, f"text: {tokenizer.decode(original)}"]
