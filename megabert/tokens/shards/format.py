"""The format of instance shards (docs/instances.md): the table of columns, instances as flat arrays, schema, metadata.

Arrow stores a column as *nodes*: one for a number per row, two for a list per row, which are where each row's values
start and the values of all rows end to end. ``COLUMNS`` is the table; the schema, the arrays of `FlatInstances` and the
loops that find these arrays in a file (`copy_loops`) follow from it.
"""

# R rows

import json
from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field

from megabert.foundation.errors import DataError
from megabert.foundation.json_files import parse_json
from megabert.tokens.masking import MaskedInstances, MaskingOptions, PieceTable

FORMAT_VERSION = 2
MAX_BATCH_ROWS = 8192
BATCH_TOKENS = 32_768
"""Tokens of a record batch, if all instances are of full length: a random row costs one read of about 80 KiB."""
PREFIX = "megabert."  # of the keys of a shard's schema metadata
MAX_SEQ_LENGTH = 65_535  # a position is stored in 16 bits
MAX_VOCAB_SIZE = 2**24  # some hundred times the largest that was ever trained
SPECIAL_TOKENS = ("pad", "unk", "cls", "sep", "mask")


class Column(NamedTuple):
    """A column of the Arrow schema, and the fields of `FlatInstances` that hold it."""

    name: str
    """Name in the schema."""
    values: str
    """Field with the values of all rows, end to end."""
    starts: str | None
    """Field that says where each row's values start; None if there is one value per row."""
    width: int
    """Bytes of a value, an unsigned integer; 0 for a token id, whose type follows from the size of the vocabulary."""

    def type(self, token: pa.DataType) -> pa.DataType:
        """Return the column's Arrow type, for token ids of a type."""
        value = {0: token, 1: pa.uint8(), 2: pa.uint16()}[self.width]
        return value if self.starts is None else pa.list_(value)


COLUMNS = (
    Column("input_ids", "input_ids", "token_starts", 0),
    Column("segment_b_start", "segment_b_starts", None, 2),
    Column("masked_lm_positions", "masked_positions", "masked_starts", 2),
    Column("masked_lm_ids", "masked_ids", "masked_id_starts", 0),
    Column("next_sentence_label", "next_sentence_labels", None, 1),
)

# Kinds of nodes.
PER_ROW, STARTS, LIST_VALUES = range(3)


class Node(NamedTuple):
    """An array of a record batch in a file."""

    field: str
    """Field of `FlatInstances`."""
    holds: int
    """PER_ROW, STARTS or LIST_VALUES."""
    width: int
    """Bytes of a value; 0 for a token id."""


def _nodes() -> tuple[Node, ...]:
    nodes = []
    for column in COLUMNS:
        if column.starts is None:
            nodes.append(Node(column.values, PER_ROW, column.width))
        else:
            nodes += [Node(column.starts, STARTS, 4), Node(column.values, LIST_VALUES, column.width)]
    return tuple(nodes)


NODES = _nodes()
"""All nodes of a record batch, in the order of the file. Each has two buffers there: validity, then its values."""


class FlatInstances(NamedTuple):
    """Instances as flat arrays: the values of a list column end to end, and where each row's start.

    It is a NamedTuple, so that a compiled loop can take it; the arrays of a file come first, in the order of ``NODES``.
    """

    token_starts: NDArray[np.integer]
    """Shape (R + 1,): where each instance's tokens start, and the end."""
    input_ids: NDArray[np.integer]
    """The tokens of all instances, as stored: masked if the shards hold the masks."""
    segment_b_starts: NDArray[np.integer]
    """Shape (R,): the index in its instance of segment B's first token; the instance's length if there is no B."""
    masked_starts: NDArray[np.integer]
    """Shape (R + 1,): where each instance's masked positions start, and the end."""
    masked_positions: NDArray[np.integer]
    """All positions to predict, counted from the start of their instance, ascending within it."""
    masked_id_starts: NDArray[np.integer]
    """The same as ``masked_starts``, for ``masked_ids``; the two are equal in sound instances."""
    masked_ids: NDArray[np.integer]
    """The ids before masking at these positions."""
    next_sentence_labels: NDArray[np.integer]
    """Shape (R,): 1 if segment B is random (or, for SOP, swapped), else 0."""
    rows: NDArray[np.int64]
    """Shape (R,): number of each instance in the set or batch that it was read from; no column of a shard."""

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> Self:
        """Open a record batch of a shard, or a slice of one; values are not copied."""
        arrays: list[NDArray[np.integer]] = []
        for column in COLUMNS:
            if column.starts is None:
                arrays.append(np.asarray(batch[column.name]))
            else:
                arrays += reversed(flat_list(batch[column.name]))
        return cls._make([*arrays, np.arange(len(batch))])

    @property
    def lengths(self) -> NDArray[np.integer]:
        """Tokens of each instance."""
        return np.diff(self.token_starts)

    @property
    def masked_tokens(self) -> NDArray[np.int64]:
        """Number, among the tokens of all instances, of each token to predict."""
        return np.repeat(self.token_starts[:-1], np.diff(self.masked_starts)) + self.masked_positions

    def with_masks(self, masked: MaskedInstances) -> Self:
        """Return the instances with their masks."""
        return self._replace(
            input_ids=masked.ids_T,
            masked_starts=masked.offsets,
            masked_positions=masked.positions_M,
            masked_id_starts=masked.offsets,
            masked_ids=masked.original_ids_M,
        )


def flat_list(column: pa.ListArray) -> tuple[NDArray[np.integer], NDArray[np.int64]]:
    """Return the values and the offsets (length + 1, from 0) of a list column, without copying values."""
    offsets = np.asarray(column.offsets)
    values = np.asarray(column.values)[offsets[0] : offsets[-1]] if len(column) else np.asarray(column.values)[:0]
    return values, np.subtract(offsets, offsets[:1], dtype=np.int64)


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
