"""The format of instance shards, described in docs/instances.md: Arrow schema, the metadata in it, and the manifest.

The manifest of a folder of shards is written last, so that a folder without one is unfinished.
"""

import hashlib
import json
import os
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args, get_origin

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field

from megabert.errors import DataError
from megabert.files import atomic_write
from megabert.json_files import parse_json, read_json
from megabert.masking import MaskingOptions, PieceTable
from megabert.shards.columns import COLUMNS, token_type

MANIFEST_NAME = "manifest.json"
FORMAT_VERSION = 2
MAX_BATCH_ROWS = 8192
BATCH_TOKENS = 32_768
"""Tokens of a record batch, if all instances are of full length: a random row costs one read of about 80 KiB."""
PREFIX = "megabert."  # of the keys of a shard's schema metadata
MAX_SEQ_LENGTH = 65_535  # a position is stored in 16 bits
MAX_VOCAB_SIZE = 2**24  # some hundred times the largest that was ever trained
Count = Annotated[int, Field(ge=0, le=1 << 48)]
"""A number of rows, tokens or files that is no damage."""
SPECIAL_TOKENS = ("pad", "unk", "cls", "sep", "mask")


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
    masked_lm_prob: float
    """Share of an instance's tokens to predict."""
    format_version: int = FORMAT_VERSION
    """Version of this schema."""

    def __post_init__(self) -> None:
        # Annotations are checked when JSON is read. Sizes that no shard can have would end in a lack of memory.
        bounds = {
            "max_seq_length": (3, MAX_SEQ_LENGTH),
            "max_predictions_per_seq": (0, MAX_SEQ_LENGTH),
            "masked_lm_prob": (0, 1),
            "vocab_size": (len(SPECIAL_TOKENS), MAX_VOCAB_SIZE),
            **{f"special_ids.{name}": (0, self.vocab_size - 1) for name in self.special_ids},
        }
        for member in fields(self):
            allowed, value = member.type, getattr(self, member.name)
            if get_origin(allowed) is Literal and value not in get_args(allowed):
                words = ", ".join(map(str, get_args(allowed)))
                raise DataError(f"Shard metadata: {member.name}={value!r}; allowed: {words}.")
        missing = [name for name in SPECIAL_TOKENS if name not in self.special_ids]
        if missing:
            raise DataError(f"Shard metadata: special_ids lacks {', '.join(missing)}; it needs {SPECIAL_TOKENS}.")
        values = {**vars(self), **{f"special_ids.{name}": number for name, number in self.special_ids.items()}}
        for name, (low, high) in bounds.items():
            if not low <= values[name] <= high:
                raise DataError(f"Shard metadata: {name}={values[name]}; allowed: {low} to {high}.")

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
        ids = {f"{name}_id": self.special_ids[name] for name in ("cls", "sep", "mask")}
        return PieceTable(**ids, vocab_size=self.vocab_size, is_subword=is_subword)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self)

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
        metadata={PREFIX + name: json.dumps(value, sort_keys=True) for name, value in metadata.to_dict().items()},
    )


@dataclass(frozen=True)
class ShardEntry:
    """A shard file as the manifest lists it."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    file: str
    """Name of the file in the manifest's folder."""
    split: Literal["train", "validation"]
    """The split; instances of held-out documents are ``validation``."""
    rows: Count
    """Number of instances."""
    tokens: Count
    """Number of tokens in all instances, special ones counted."""
    masked_tokens: Count
    """Number of positions to predict; 0 if masking is dynamic."""
    sha256: str
    """SHA-256 of the file's bytes."""
    bucket: Count
    """Number of the part of the documents that the first segments came from; the first of them if there are several."""
    pass_number: Count
    """Number of the pass over the documents, from 0 to ``dupe_factor`` - 1, that wrote the shard."""
    buckets: Count = 1
    """Number of consecutive parts of the documents that the first segments came from."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The shards of one sequence length. Rows are numbered globally over the order of ``shards``."""

    metadata: ShardMetadata
    """Properties that all shards share."""
    shards: list[ShardEntry]
    """The shards, in the order that numbers the rows."""
    config: dict[str, Any] = field(default_factory=dict)
    """The build's full configuration."""
    versions: dict[str, str] = field(default_factory=dict)
    """Versions of the packages that the build used."""
    statistics: dict[str, Any] = field(default_factory=dict)
    """Counts of the build: documents, sentences, lengths, labels, masks, and dropped documents by reason."""

    def of_split(self, split: str) -> list[ShardEntry]:
        """Return the shards of one split in order."""
        return [shard for shard in self.shards if shard.split == split]

    def totals(self) -> dict[str, dict[str, int]]:
        """Return shards, rows, tokens and masked tokens by split."""
        result: dict[str, dict[str, int]] = {}
        for shard in self.shards:
            total = result.setdefault(shard.split, {"shards": 0, "rows": 0, "tokens": 0, "masked_tokens": 0})
            total["shards"] += 1
            for name in ("rows", "tokens", "masked_tokens"):
                total[name] += getattr(shard, name)
        return result

    @property
    def data_sha256(self) -> str:
        """Hex digest that identifies the instances: metadata, and file, split, rows and SHA-256 of each shard in order.

        Paths in the configuration, package versions and counts are left out, so that a copied or repeated build has the
        same digest.
        """
        # Lists, not objects: a field that a later version adds to the entries leaves the digest as it is.
        shards = [[shard.file, shard.split, shard.rows, shard.sha256] for shard in self.shards]
        text = json.dumps([self.metadata.to_dict(), shards], sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def write_manifest(folder: Path | str, manifest: Manifest) -> Path:
    """Write ``manifest.json`` whole or not at all, and return its path; one that is just so already is left alone.

    Raises:
        DataError: The manifest has no shards, or the disk is full.
    """
    path = Path(folder) / MANIFEST_NAME
    if not manifest.shards:
        raise DataError(f"{path}: refused, there is no shard to list. The corpus gave no instance.")
    content = {"format_version": FORMAT_VERSION, "totals": manifest.totals(), **asdict(manifest)}
    content["metadata"] = manifest.metadata.to_dict()
    text = json.dumps(content, indent=1, sort_keys=True).encode() + b"\n"
    if not path.is_file() or path.read_bytes() != text:
        atomic_write(path, text)
    return path


def read_manifest(folder: Path | str) -> Manifest:
    """Read the manifest of a folder of shards, checking everything but the shards' bytes.

    Raises:
        DataError: The manifest is missing (an unfinished build), damaged, of another format version or without
            shards; a shard file is missing; or the totals are not the sums over the shards.
    """
    path, remedy = Path(folder) / MANIFEST_NAME, "Build the shards again."
    _check_exists(path)
    values = read_json(path, dict[str, Any], remedy=remedy)
    check_version(values, str(path))  # before the types: a later version may have other fields
    content = parse_json(json.dumps(values), _Content, where=str(path), remedy=remedy)
    if not content.shards:
        raise DataError(f"{path}: lists no shards. Build them again with `megabert-data build`.")
    present = {entry.name for entry in os.scandir(path.parent)}  # one request, not one for each of 50,000 shards
    for index, entry in enumerate(content.shards):
        _check_file(path, index, entry, present)
    manifest = Manifest(
        metadata=ShardMetadata.from_dict(content.metadata, str(path)),
        shards=content.shards,
        config=content.config,
        versions=content.versions,
        statistics=content.statistics,
    )
    if manifest.totals() != content.totals:
        raise DataError(f"{path}: its totals are not the sums over its shards; it was edited. {remedy}")
    return manifest


@dataclass(frozen=True, kw_only=True)
class _Content:
    """The content of ``manifest.json``, but for its format version."""

    metadata: dict[str, Any]
    shards: list[ShardEntry]
    totals: dict[str, dict[str, int]]
    config: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    statistics: dict[str, Any] = field(default_factory=dict)


def _check_exists(path: Path) -> None:
    if path.exists():
        return
    # The outermost folder that does not exist tells a mistyped path from an unfinished build.
    missing = next((folder for folder in reversed(path.parents) if not folder.exists()), None)
    remedy = "Run the same `megabert-data build` command again: it continues where it stopped."
    if missing is not None:
        remedy = f"There is no {missing}: check the path, or build such shards with `megabert-data build`."
    raise DataError(
        f"{path}: not there, so {path.parent} is no finished folder of shards. {remedy}", see="there-are-no-shards"
    )


def _check_file(path: Path, index: int, entry: ShardEntry, present: set[str]) -> None:
    # A name with a folder in it could make a reader open files outside the folder of shards.
    if Path(entry.file).name != entry.file:
        raise DataError(f"{path}: shards[{index}].file={entry.file!r} is no plain file name.")
    if entry.file not in present:
        raise DataError(
            f"{path.parent / entry.file}: listed in the manifest but not there. "
            "Copy it again, or run the same `megabert-data build` command, which writes it again.",
            see="a-shard-is-missing-or-damaged",
        )
