"""The contract between ``data_prep`` and ``megabert``: Arrow schema, shard manifest, atomic files."""

from megabert.schema.batches import find_nonsense, read_batch
from megabert.schema.files import (
    atomic_path,
    atomic_write,
    is_temporary,
    open_lock,
    parse_json,
    publish_folder,
    read_json,
    replace_folder,
    sha256_file,
    to_json,
    try_lock,
    write_durably,
)
from megabert.schema.shards import (
    MANIFEST_NAME,
    MAX_BATCH_ROWS,
    Manifest,
    ShardEntry,
    ShardMetadata,
    instance_schema,
    read_manifest,
    token_type,
    write_manifest,
)

__all__ = [
    "MANIFEST_NAME",
    "MAX_BATCH_ROWS",
    "Manifest",
    "ShardEntry",
    "ShardMetadata",
    "atomic_path",
    "atomic_write",
    "find_nonsense",
    "instance_schema",
    "is_temporary",
    "open_lock",
    "parse_json",
    "publish_folder",
    "read_batch",
    "read_json",
    "read_manifest",
    "replace_folder",
    "sha256_file",
    "to_json",
    "token_type",
    "try_lock",
    "write_durably",
    "write_manifest",
]
