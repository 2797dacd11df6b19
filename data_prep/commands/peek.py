"""Show one instance, masks in place.

That is its segments, its label, and at each masked position the piece shown and the piece hidden.

Arguments:
  SHARD:ROW        a shard's path and a row of it, from 0
  --tokenizer DIR  folder of the tokenizer (default: tokenizer/ next to the shard)

Example:
  megabert-data peek data/mine/instances/128/train-00000-00.arrow:7
"""

import re
from argparse import Namespace
from pathlib import Path

import numpy as np
import pyarrow as pa

from data_prep.documents.arrow_files import open_mapped
from megabert.foundation.errors import DataError
from megabert.settings.command_line.parser import Parser
from megabert.tokens.shards.columns import FlatInstances
from megabert.tokens.shards.format import ShardMetadata
from megabert.tokens.shards.shard_file import find_nonsense, read_batches
from megabert.tokens.tokenization import Tokenizer, load_tokenizer
from megabert.tokens.tokenization.written import readable_pieces


def add_arguments(parser: Parser) -> None:
    """Describe the command."""
    parser.add_argument("place", metavar="SHARD:ROW")
    parser.add_argument("--tokenizer", type=Path)


def run(options: Namespace) -> None:
    """Print one instance."""
    path, _, row = options.place.rpartition(":")
    if not path or not re.fullmatch("[0-9]{1,18}", row):
        raise DataError(f"{options.place!r}: expected SHARD:ROW, such as train-00000-00.arrow:7.")
    batch, metadata = read_row(Path(path), int(row))
    tokenizer = load_tokenizer(options.tokenizer or Path(path).parent / "tokenizer")
    if tokenizer.sha256 != metadata.tokenizer_sha256:
        raise DataError(f"{tokenizer.where}: not the tokenizer of {path}. Give the right one with --tokenizer.")
    print("\n".join(describe(batch, metadata, tokenizer)))


def read_row(path: Path, row: int) -> tuple[pa.RecordBatch, ShardMetadata]:
    """Return one row of a shard.

    Raises:
        DataError: No shard, or it has fewer rows.
    """
    reader = open_mapped(path)
    metadata = ShardMetadata.from_arrow(reader.schema, str(path))
    remaining = row
    for index in range(reader.num_record_batches):
        try:
            batch = read_batches(reader, [index])
        except DataError as error:
            raise DataError(f"{path}: {error}. Copy the shard again, or build it again.") from error
        if remaining < batch.num_rows:
            chosen = batch.slice(remaining, 1)
            if nonsense := find_nonsense(FlatInstances.of(chosen), metadata):
                raise DataError(f"{path}: row {row}: {nonsense[1]}. Build the shards again.")
            return chosen, metadata
        remaining -= batch.num_rows
    rows = row - remaining
    raise DataError(f"{path}: has {rows:,} rows; row {row} is not among 0 to {rows - 1}.")


def describe(row: pa.RecordBatch, metadata: ShardMetadata, tokenizer: Tokenizer) -> list[str]:
    """Return lines that show an instance: segments with the shown and the hidden piece of each masked position."""
    values = {name: column[0].as_py() for name, column in zip(row.schema.names, row.columns, strict=True)}
    ids, split = values["input_ids"], values["segment_b_start"]
    positions, hidden = values["masked_lm_positions"], values["masked_lm_ids"]
    shown = readable_pieces(tokenizer, ids)
    for position, piece in zip(positions, readable_pieces(tokenizer, hidden), strict=True):
        shown[position] = f"{{{shown[position]}<-{piece}}}"
    original = np.array(ids)
    original[positions] = hidden
    meaning = {
        "nsp": ("0: B follows A", "1: B is random"),
        "sop": ("0: in order", "1: swapped"),
        "none": ("0: no pair", "1: invalid"),
    }[metadata.objective][values["next_sentence_label"]]
    lines = [
        f"length {len(ids)} of {metadata.max_seq_length}, B starts at {split}, label {meaning}, "
        f"{len(positions)} to predict (shown as {{piece<-original}})",
        f"A: {' '.join(shown[:split])}",
    ]
    if split < len(ids):
        lines.append(f"B: {' '.join(shown[split:])}")
    return [*lines, f"text: {tokenizer.decode(original)}"]
