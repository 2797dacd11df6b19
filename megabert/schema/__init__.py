"""The contract between ``data_prep`` and ``megabert``: the Arrow schema and the shard manifest."""

from megabert.schema.instances import (
    FlatBatch,
    LengthsSpan,
    find_nonsense,
    flat_list,
    lengths_path,
    read_batch,
    read_batches,
    read_length_spans,
    read_lengths,
    write_lengths,
)
from megabert.schema.shards import (
    MANIFEST_NAME,
    MAX_BATCH_ROWS,
    Manifest,
    ShardEntry,
    ShardMetadata,
    instance_schema,
    read_manifest,
    rows_per_batch,
    token_type,
    write_manifest,
)

__all__ = [
    "MANIFEST_NAME",
    "MAX_BATCH_ROWS",
    "FlatBatch",
    "LengthsSpan",
    "Manifest",
    "ShardEntry",
    "ShardMetadata",
    "find_nonsense",
    "flat_list",
    "instance_schema",
    "lengths_path",
    "read_batch",
    "read_batches",
    "read_length_spans",
    "read_lengths",
    "read_manifest",
    "rows_per_batch",
    "token_type",
    "write_lengths",
    "write_manifest",
]
