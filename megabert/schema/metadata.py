"""The Arrow schema of an instance shard, and the metadata in it (described in docs/instances.md)."""

import json
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args, get_origin

import pyarrow as pa

from megabert.errors import DataError

FORMAT_VERSION = 1
MAX_BATCH_ROWS = 8192  # reading one row decompresses a whole batch
PREFIX = "megabert."
SPECIAL_TOKENS = ("pad", "unk", "cls", "sep", "mask")


@dataclass(frozen=True, kw_only=True)
class ShardMetadata:
    """Properties of every instance of a set of shards, stored in each shard's Arrow schema metadata."""

    objective: Literal["nsp", "sop", "none"]
    """Meaning of ``next_sentence_label``: next sentence prediction, sentence order prediction, or none."""
    pairing: Literal["balanced", "google"]
    """Algorithm that drew the pairs of segments."""
    masking: Literal["static", "dynamic"]
    """Masks are in the shards (static), or drawn by the loader in each epoch (dynamic)."""
    mask_unit: Literal["token", "whole_word", "span"]
    """Tokens that are masked together."""
    max_seq_length: int
    """Upper limit of an instance's tokens, [CLS] and [SEP] counted."""
    max_predictions_per_seq: int
    """Upper limit of an instance's masked positions."""
    seed: int
    """Seed of all random draws of the build."""
    tokenizer_sha256: str
    """SHA-256 that identifies the tokenizer of the ids."""
    special_ids: dict[str, int]
    """Ids of the special pieces, by the names pad, unk, cls, sep and mask."""
    vocab_size: int
    """Number of pieces in the vocabulary."""
    masked_lm_prob: float = 0.15
    """Share of an instance's tokens to predict. Shards that do not store it were masked with BERT's 0.15."""
    format_version: int = FORMAT_VERSION
    """Version of this schema."""

    def __post_init__(self) -> None:
        for field in fields(self):
            allowed, value = field.type, getattr(self, field.name)
            if get_origin(allowed) is Literal and value not in get_args(allowed):
                raise DataError(f"Shard metadata: {field.name}={value!r}; allowed: {', '.join(get_args(allowed))}.")
        missing = [name for name in SPECIAL_TOKENS if name not in self.special_ids]
        if missing:
            raise DataError(f"Shard metadata: special_ids lacks {', '.join(missing)}; it needs {SPECIAL_TOKENS}.")

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any], where: str = "shard metadata") -> "ShardMetadata":
        """Build the metadata from JSON values.

        Args:
            values: The fields, as ``to_dict`` returns them.
            where: The file, or whatever else the values come from; errors name it.

        Raises:
            DataError: The format version is another one, or fields are missing or unknown.
        """
        check_version(values, where)
        names = {field.name for field in fields(cls)}
        # The first shards did not store masked_lm_prob: it may be missing.
        wrong = sorted((names ^ set(values)) - ({"masked_lm_prob"} - set(values)))
        if wrong:
            raise DataError(f"{where}: missing or unknown fields {', '.join(wrong)}. Build the shards again.")
        return cls(**values)

    def to_arrow(self) -> dict[str, str]:
        """Return the Arrow schema metadata: JSON values under keys with the prefix ``megabert.``."""
        return {PREFIX + name: json.dumps(value, sort_keys=True) for name, value in self.to_dict().items()}

    @classmethod
    def from_arrow(cls, schema: pa.Schema, where: str = "shard") -> "ShardMetadata":
        """Read the metadata of an Arrow schema.

        Raises:
            DataError: The schema is not that of an instance shard of this version.
        """
        stored = {key.decode(): value for key, value in (schema.metadata or {}).items()}
        values = {key.removeprefix(PREFIX): json.loads(v) for key, v in stored.items() if key.startswith(PREFIX)}
        if not values:
            raise DataError(
                f"{where}: not an instance shard (no megabert metadata). Name a shard of a build's instances."
            )
        metadata = cls.from_dict(values, where)
        if not schema.remove_metadata().equals(instance_schema(metadata).remove_metadata()):
            raise DataError(f"{where}: its columns are not those of an instance shard:\n{schema.remove_metadata()}")
        return metadata


def check_version(values: dict[str, Any], where: str) -> None:
    """Raise a DataError if a manifest or the metadata of a shard has another format version than ours."""
    version = values.get("format_version")
    if version != FORMAT_VERSION:
        raise DataError(
            f"{where}: format_version={version!r}, this megabert reads {FORMAT_VERSION}. "
            "Build the shards again with `megabert-data build`, or use the version of megabert that wrote them."
        )


def token_type(vocab_size: int) -> pa.DataType:
    """Return the narrowest Arrow type that holds every token id."""
    return pa.uint16() if vocab_size <= 65_536 else pa.uint32()


def instance_schema(metadata: ShardMetadata) -> pa.Schema:
    """Return the Arrow schema of a shard, with its metadata. Each row is an instance without padding."""
    token = token_type(metadata.vocab_size)
    return pa.schema(
        [
            ("input_ids", pa.list_(token)),
            ("segment_b_start", pa.uint16()),
            ("masked_lm_positions", pa.list_(pa.uint16())),
            ("masked_lm_ids", pa.list_(token)),
            ("next_sentence_label", pa.uint8()),
        ],
        metadata=metadata.to_arrow(),
    )
