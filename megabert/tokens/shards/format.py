"""The format of instance shards, described in docs/instances.md: the Arrow schema, and the metadata in it."""

import json
from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field

from megabert.foundation.errors import DataError
from megabert.foundation.json_files import parse_json
from megabert.tokens.masking import MaskingOptions, PieceTable
from megabert.tokens.shards.columns import COLUMNS

FORMAT_VERSION = 2
MAX_BATCH_ROWS = 8192
BATCH_TOKENS = 32_768
"""Tokens of a record batch, if all instances are of full length: a random row costs one read of about 80 KiB."""
PREFIX = "megabert."  # of the keys of a shard's schema metadata
MAX_SEQ_LENGTH = 65_535  # a position is stored in 16 bits
MAX_VOCAB_SIZE = 2**24  # some hundred times the largest that was ever trained
SPECIAL_TOKENS = ("pad", "unk", "cls", "sep", "mask")


def token_type(vocab_size: int) -> pa.DataType:
    """Return the narrowest Arrow type that holds every token id."""
    return pa.uint16() if vocab_size <= 65_536 else pa.uint32()


@dataclass(frozen=True, kw_only=True)
class ShardMetadata:
    """Properties of every instance of a set of shards, stored in each shard's Arrow schema metadata."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    objective: Literal["nsp", "sop", "none"]
    """Meaning of ``next_sentence_label``: next sentence prediction, sentence order prediction, or none."""
    pairing: Literal["balanced", "google"]
    """Algorithm that drew the pairs of segments."""
    masking: Literal["static", "dynamic"]
    """Masks are in the shards (static), or drawn by the loader in each epoch (dynamic)."""
    mask_unit: Literal["token", "whole_word", "span"]
    """Tokens that are masked together."""
    max_seq_length: Annotated[int, Field(ge=3, le=MAX_SEQ_LENGTH)]
    """Upper limit of an instance's tokens, [CLS] and [SEP] counted."""
    max_predictions_per_seq: Annotated[int, Field(ge=0, le=MAX_SEQ_LENGTH)]
    """Upper limit of an instance's masked positions."""
    seed: int
    """Seed of all random draws of the build."""
    tokenizer_sha256: str
    """SHA-256 that identifies the tokenizer of the ids."""
    special_ids: dict[str, int]
    """Ids of the special pieces, by the names pad, unk, cls, sep and mask."""
    vocab_size: Annotated[int, Field(ge=5, le=MAX_VOCAB_SIZE)]
    """Number of pieces in the vocabulary."""
    masked_lm_prob: Annotated[float, Field(ge=0, le=1)]
    """Share of an instance's tokens to predict."""
    format_version: int = FORMAT_VERSION
    """Version of this schema."""

    def __post_init__(self) -> None:
        # Annotations are checked when JSON is read. Sizes that no shard can have would end in a lack of memory.
        missing = [name for name in SPECIAL_TOKENS if name not in self.special_ids]
        if missing:
            raise DataError(f"Shard metadata: special_ids lacks {', '.join(missing)}; it needs {SPECIAL_TOKENS}.")
        for name, number in self.special_ids.items():
            if not 0 <= number < self.vocab_size:
                raise DataError(f"Shard metadata: special_ids.{name}={number}; allowed: 0 to {self.vocab_size - 1}.")

    @property
    def masking_options(self) -> MaskingOptions:
        """How the instances are masked."""
        return MaskingOptions(
            mask_unit=self.mask_unit,
            masked_lm_prob=self.masked_lm_prob,
            max_predictions_per_seq=self.max_predictions_per_seq,
        )

    def piece_table(self, is_subword: NDArray[np.bool_] | None) -> PieceTable:
        """Return the properties of the vocabulary on which masking depends.

        Args:
            is_subword: By id, whether a piece continues a word; needed if words are masked.
        """
        cls_id, sep_id, mask_id = (self.special_ids[name] for name in ("cls", "sep", "mask"))
        return PieceTable(cls_id, sep_id, mask_id, vocab_size=self.vocab_size, is_subword=is_subword)

    @classmethod
    def from_dict(cls, values: dict[str, Any], where: str = "shard metadata") -> "ShardMetadata":
        """Build the metadata from JSON values.

        Args:
            values: The fields, as JSON gives them back.
            where: The file, or whatever else the values come from; errors name it.

        Raises:
            DataError: The format version is another one, or fields are missing, unknown or impossible.
        """
        check_version(values, where)
        try:
            parse_json(json.dumps(values), cls, where=where, remedy="Build the shards again.")
        except DataError as error:
            raise DataError(f"{where}: {str(error).removeprefix(f'{where}: ')}") from None
        return cls(**values)  # not the parsed values: an integer that became a float would change ``data_sha256``

    @classmethod
    def from_arrow(cls, schema: pa.Schema, where: str = "shard") -> "ShardMetadata":
        """Read the metadata of an Arrow schema.

        Raises:
            DataError: An instance shard of this version has another schema.
        """
        # Other programs may have left metadata of their own next to ours.
        stored = {key.decode(errors="replace"): value for key, value in (schema.metadata or {}).items()}
        remedy = "Copy the shard again, or build the shards again."
        values = {
            key.removeprefix(PREFIX): parse_json(value, Any, where=f"{where}: {key}", remedy=remedy)
            for key, value in stored.items()
            if key.startswith(PREFIX)
        }
        if not values:
            raise DataError(
                f"{where}: not an instance shard (no megabert metadata). Name a shard of a build's instances."
            )
        metadata = cls.from_dict(values, where)
        # The file has the columns that follow from its metadata.
        try:
            theirs = [(column.name, column.type) for column in schema]
        except UnicodeDecodeError as error:
            raise DataError(f"{where}: the name of a column is damaged ({error}). {remedy}") from None
        ours = [(column.name, column.type) for column in instance_schema(metadata)]
        if ours != theirs:
            name, type_ = next(column for index, column in enumerate(ours) if theirs[index : index + 1] != [column])
            actual = ", ".join(f"{name} ({type_})" for name, type_ in theirs)
            raise DataError(
                f"{where}: its columns have to be {', '.join(name for name, _ in ours)}, in this order and with the "
                f"types of docs/instances.md, here {type_} for {name}. They are {actual}. Write them so, or build the "
                "shards again."
            )
        return metadata


def check_version(values: dict[str, Any], where: str) -> None:
    """Raise a DataError if a manifest or the metadata of a shard has another format version than ours."""
    version = values.get("format_version")
    if version != FORMAT_VERSION:
        raise DataError(
            f"{where}: format_version={version!r}, this megabert reads {FORMAT_VERSION}. "
            "Build the shards again with `megabert-data build`, or use the version of megabert that wrote them."
        )


def rows_per_batch(max_seq_length: int) -> int:
    """Return how many rows the record batches of a new shard have."""
    return max(1, min(MAX_BATCH_ROWS, BATCH_TOKENS // max_seq_length))


def instance_schema(metadata: ShardMetadata) -> pa.Schema:
    """Return the Arrow schema of a shard, with its metadata as JSON. Each row is an instance without padding."""
    token = token_type(metadata.vocab_size)
    return pa.schema(
        [(column.name, column.type(token)) for column in COLUMNS],
        metadata={PREFIX + name: json.dumps(value, sort_keys=True) for name, value in asdict(metadata).items()},
    )
