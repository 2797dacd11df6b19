"""The contract between ``data_prep`` and ``megabert``: Arrow schema, shard manifest, atomic files."""

from megabert.schema.files import (
    atomic_path,
    atomic_write,
    publish_folder,
    replace_folder,
    sha256_file,
    sync_file,
    sync_folder,
    try_lock,
    write_durably,
)
from megabert.schema.json_files import parse_json, read_json, to_json
from megabert.schema.manifest import MANIFEST_NAME, Manifest, ShardEntry, read_manifest, write_manifest
from megabert.schema.metadata import FORMAT_VERSION, MAX_BATCH_ROWS, ShardMetadata, instance_schema, token_type

__all__ = [
    "FORMAT_VERSION",
    "MANIFEST_NAME",
    "MAX_BATCH_ROWS",
    "Manifest",
    "ShardEntry",
    "ShardMetadata",
    "atomic_path",
    "atomic_write",
    "instance_schema",
    "parse_json",
    "publish_folder",
    "read_json",
    "read_manifest",
    "replace_folder",
    "sha256_file",
    "sync_file",
    "sync_folder",
    "to_json",
    "token_type",
    "try_lock",
    "write_durably",
    "write_manifest",
]
