"""A folder of shards: its manifest, which is written last, and the index of lengths next to each shard.

A folder without a manifest is unfinished, and no reader opens it.

``train-00000-00.arrow`` has its index in ``train-00000-00.row_lengths.npy``: an array of numpy with a row per
instance, its length and, if masks are in the shards, its number of positions to predict. A loader plans with it
without reading instances: it takes 2 or 4 bytes per instance, and a range of instances is one read. It says nothing
that the shard does not say, so it is written again if it is missing or does not fit.
"""

import hashlib
import io
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from megabert.foundation.cached_folders import MANIFEST_NAME, ORIGIN_NAME
from megabert.foundation.errors import DataError
from megabert.foundation.files import atomic_path, atomic_write, open_to_read
from megabert.foundation.json_files import read_json
from megabert.tokens.masking import MaskingOptions
from megabert.tokens.shards.format import FORMAT_VERSION, ShardMetadata, check_version

Count = Annotated[int, Field(ge=0, le=1 << 48)]
"""A number of rows, tokens or files that is no damage."""
_LENGTH_TYPE = np.dtype("<u2")
_INDEX_SUFFIX = ".row_lengths.npy"


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
    tokenizer_files: dict[str, str] = field(default_factory=dict)
    """SHA-256 of each file of the tokenizer next to it; another program need not say any."""

    def of_split(self, split: str) -> list[ShardEntry]:
        """Return the shards of one split in order."""
        return [shard for shard in self.shards if shard.split == split]

    def totals(self) -> dict[str, dict[str, int]]:
        """Return shards, rows, tokens and masked tokens by split."""
        result: dict[str, dict[str, int]] = {}
        for split in dict.fromkeys(shard.split for shard in self.shards):
            own, counts = self.of_split(split), ("rows", "tokens", "masked_tokens")
            result[split] = {"shards": len(own), **{name: sum(getattr(s, name) for s in own) for name in counts}}
        return result

    @property
    def data_sha256(self) -> str:
        """Hex digest that identifies the instances: metadata, and file, split, rows and SHA-256 of each shard in order.

        Paths in the configuration, package versions and counts are left out, so that a copied or repeated build has the
        same digest.
        """
        # Lists, not objects: a field that a later version adds to the entries leaves the digest as it is.
        shards = [[shard.file, shard.split, shard.rows, shard.sha256] for shard in self.shards]
        text = json.dumps([asdict(self.metadata), shards], sort_keys=True, separators=(",", ":"))
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
    content = read_json(path, _Content, remedy=remedy)
    if not content.shards:
        raise DataError(f"{path}: lists no shards. Build them again with `megabert-data build`.")
    present = {entry.name for entry in os.scandir(path.parent)}  # one request, not one for each of 50,000 shards
    for index, entry in enumerate(content.shards):
        _check_file(path, index, entry, present)
    manifest = Manifest(**{**vars(content), "metadata": ShardMetadata.from_dict(values["metadata"], str(path))})
    if manifest.totals() != values.get("totals"):
        raise DataError(f"{path}: its totals are not the sums over its shards; it was edited. {remedy}")
    return manifest


@dataclass(frozen=True, kw_only=True)
class _Content(Manifest):
    """The content of ``manifest.json`` whose types are checked; the metadata have a version of their own."""

    metadata: dict[str, Any]  # type: ignore[assignment]


def _check_exists(path: Path) -> None:
    if path.exists():
        return
    # The outermost folder that does not exist tells a mistyped path from an unfinished build.
    missing = next((folder for folder in reversed(path.parents) if not folder.exists()), None)
    remedy = "Run the same `megabert-data build` command again to resume it."
    if missing is not None:
        remedy = f"There is no {missing}: check the path, or build such shards with `megabert-data build`."
    raise DataError(
        f"{path}: not there, so {path.parent} is no finished folder of shards. {remedy}", see="there-are-no-shards"
    )


def _check_file(path: Path, index: int, entry: ShardEntry, present: set[str]) -> None:
    # A name with a folder in it could make a reader open files outside the folder of shards.
    if Path(entry.file).name != entry.file:
        raise DataError(f"{path}: shards[{index}].file={entry.file!r} is no plain file name.")
    if entry.file not in present and ORIGIN_NAME not in present:  # a cache fetches it when it is read
        raise DataError(
            f"{path.parent / entry.file}: listed in the manifest but not there. "
            "Copy it again, or run the same `megabert-data build` command, which writes it again.",
            see="a-shard-is-missing-or-damaged",
        )


class LengthsSpan(NamedTuple):
    """A part of a lengths index."""

    shard: Path
    rows: int
    """Instances of the shard."""
    first: int
    """First instance of the part, counted from the shard's first."""
    stop: int
    """The instance after its last."""


def lengths_path(shard: Path) -> Path:
    """Return where the index of a shard is."""
    return Path(_index_path(shard))


def write_lengths(shard: Path, *kinds: NDArray[np.integer]) -> Path:
    """Write the index of a shard whole or not at all, and return its path.

    Args:
        shard: The shard.
        *kinds: Tokens of each instance and, if masks are in the shards, the positions to predict of each.
    """
    path = lengths_path(shard)
    with atomic_path(path) as temporary, open(temporary, "xb") as stream:
        values = np.stack(kinds, axis=1).astype(_LENGTH_TYPE)
        stream.write(_npy_header(len(values), len(kinds)) + values.tobytes())
    return path


def read_lengths(shard: Path, rows: int, kinds: int) -> NDArray[np.uint16] | None:
    """Return a shard's whole index; None if there is no index, or none of such a shard.

    Args:
        shard: The shard.
        rows: Its instances.
        kinds: 1 if the loader draws the masks, 2 if they are in the shard.

    Returns:
        Shape (kinds, instances): tokens, then positions to predict.
    """
    (values,) = read_length_spans([LengthsSpan(shard, rows, 0, rows)], kinds)
    if values is None:
        return None
    header = _npy_header(rows, kinds)
    with suppress(OSError), open_to_read(lengths_path(shard)) as stream:
        if stream.read(len(header)) == header:
            return values.T
    return None


def read_length_spans(spans: Sequence[LengthsSpan], kinds: int) -> list[NDArray[np.uint16] | None]:
    """Return parts of indices; None for one whose index is missing, or none of such a shard.

    The system is asked for all of them before the first one is read, so that it reads many at a time. The size of a
    file has to tell whether it is such an index, because its header would be a second read of the disk.

    Args:
        spans: The parts.
        kinds: 1 if the loader draws the masks, 2 if they are in the shard.

    Returns:
        For each part, shape (instances, kinds): tokens, then positions to predict.
    """
    descriptors: list[int | None] = []
    try:
        for span in spans:
            descriptors.append(_open_index(span, kinds))
        parts = zip(descriptors, spans, strict=True)
        return [None if descriptor is None else _read_index(descriptor, span, kinds) for descriptor, span in parts]
    finally:
        for descriptor in descriptors:
            if descriptor is not None:
                os.close(descriptor)


def _open_index(span: LengthsSpan, kinds: int) -> int | None:
    """Open an index and ask the system for a part of it; None if there is no index, or none of such a shard."""
    try:
        descriptor = os.open(_index_path(span.shard), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe would wait
    except OSError:
        return None
    start, size, file_size = _bytes_of(span, kinds)
    with suppress(OSError):
        if os.fstat(descriptor).st_size == file_size:
            os.posix_fadvise(descriptor, start, size, os.POSIX_FADV_WILLNEED)
            return descriptor
    os.close(descriptor)
    return None


def _read_index(descriptor: int, span: LengthsSpan, kinds: int) -> NDArray[np.uint16] | None:
    """Read a part of an index; None if it cannot be read, or became shorter meanwhile."""
    # Read, and not mapped: of a file that someone truncates a mapping would end the process.
    start, size, _ = _bytes_of(span, kinds)
    try:
        return np.frombuffer(os.pread(descriptor, size, start), _LENGTH_TYPE).reshape(span.stop - span.first, kinds)
    except (OSError, ValueError):
        return None


def _bytes_of(span: LengthsSpan, kinds: int) -> tuple[int, int, int]:
    """Return where a part of an index starts, how many bytes it has, and how many the whole file has."""
    width, start = kinds * _LENGTH_TYPE.itemsize, len(_npy_header(span.rows, kinds))
    return start + span.first * width, (span.stop - span.first) * width, start + span.rows * width


def _index_path(shard: Path) -> str:
    """Return where the index of a shard is; a loader asks so often that a Path would cost as much as the reading."""
    return os.path.splitext(shard)[0] + _INDEX_SUFFIX


@lru_cache(maxsize=1024)
def _npy_header(rows: int, kinds: int) -> bytes:
    """Return the bytes with which numpy begins a file that holds such an array."""
    stream = io.BytesIO()
    description = {"descr": _LENGTH_TYPE.str, "fortran_order": False, "shape": (rows, kinds)}
    np.lib.format.write_array_header_1_0(stream, description)
    return stream.getvalue()


@dataclass(frozen=True, kw_only=True)
class InstanceStatistics:
    """Totals of a split, from the manifest: all that is needed to size micro-batches.

    Attributes:
        rows: Number of instances.
        tokens: Tokens of all instances.
        masked_tokens: Masked positions of all instances.
        max_seq_length: Greatest length that an instance may have.
        max_masked: Most masked positions that one instance may have.
    """

    rows: int
    tokens: int
    masked_tokens: int
    max_seq_length: int
    max_masked: int

    def masked_by(self, options: MaskingOptions) -> "InstanceStatistics":
        """Return the totals if the loader draws the masks; the number of masked positions is an upper estimate."""
        most = options.max_predictions_per_seq
        expected = round(options.masked_lm_prob * self.tokens + 0.5 * self.rows)
        return replace(self, masked_tokens=min(most * self.rows, expected), max_masked=max(1, most))
