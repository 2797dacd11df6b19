"""The manifest of a folder of instance shards. It is written last, so that a folder without one is unfinished."""

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from megabert.errors import DataError
from megabert.schema.files import atomic_write
from megabert.schema.json_files import parse_json
from megabert.schema.metadata import FORMAT_VERSION, ShardMetadata, check_version

MANIFEST_NAME = "manifest.json"


@dataclass(frozen=True)
class ShardEntry:
    """A shard file as the manifest lists it."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    file: str
    """Name of the file in the manifest's folder."""
    split: Literal["train", "validation"]
    """The split; instances of held-out documents are ``validation``."""
    rows: int
    """Number of instances."""
    tokens: int
    """Number of tokens in all instances, special ones counted."""
    masked_tokens: int
    """Number of positions to predict; 0 if masking is dynamic."""
    sha256: str
    """SHA-256 of the file's bytes."""
    bucket: int
    """Number of the part of the documents that the first segments came from."""
    duplicate: int
    """Number of the pass over the documents, from 0 to ``dupe_factor`` - 1, that wrote the shard."""


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
    """Counts of the build: documents, sentences, lengths, labels and masks, and what was dropped for which reason."""

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
        shards = [[shard.file, shard.split, shard.rows, shard.sha256] for shard in self.shards]
        text = json.dumps([self.metadata.to_dict(), shards], sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """Return the content of ``manifest.json``."""
        return {
            "format_version": FORMAT_VERSION,
            "metadata": self.metadata.to_dict(),
            "totals": self.totals(),
            "shards": [asdict(shard) for shard in self.shards],
            "config": self.config,
            "versions": self.versions,
            "statistics": self.statistics,
        }


def write_manifest(folder: Path | str, manifest: Manifest) -> Path:
    """Write ``manifest.json`` whole or not at all, and return its path.

    Raises:
        DataError: The manifest has no shards, or the disk is full.
    """
    path = Path(folder) / MANIFEST_NAME
    if not manifest.shards:
        raise DataError(f"{path}: refused, there is no shard to list. The corpus gave no instance.")
    atomic_write(path, json.dumps(manifest.to_dict(), indent=1, sort_keys=True) + "\n")
    return path


def read_manifest(folder: Path | str) -> Manifest:
    """Read the manifest of a folder of shards, checking everything but the shards' bytes.

    Raises:
        DataError: The manifest is missing (an unfinished build), damaged, of another format version or without
            shards; a shard file is missing; or the totals are not the sums over the shards.
    """
    path = Path(folder) / MANIFEST_NAME
    values = _load(path)
    check_version(values, str(path))
    missing = [key for key in ("metadata", "shards", "totals") if key not in values]
    if missing:
        raise DataError(f"{path}: lacks {', '.join(missing)}. Build the shards again.")
    content = json.dumps(values["shards"])
    shards = parse_json(content, list[ShardEntry], where=f"{path}: shards", remedy="Build the shards again.")
    if not shards:
        raise DataError(f"{path}: lists no shards. Build them again with `megabert-data build`.")
    for index, entry in enumerate(shards):
        _check_file(path, index, entry)
    manifest = Manifest(
        metadata=ShardMetadata.from_dict(values["metadata"], str(path)),
        shards=shards,
        **{key: values.get(key, {}) for key in ("config", "versions", "statistics")},
    )
    if manifest.totals() != values["totals"]:
        raise DataError(f"{path}: its totals are not the sums over its shards; it was edited. Build the shards again.")
    return manifest


def _load(path: Path) -> dict[str, Any]:
    if not path.is_file():
        # The outermost folder that does not exist tells a mistyped path from an unfinished build.
        missing = next((folder for folder in reversed(path.parents) if not folder.exists()), None)
        remedy = "Run the same `megabert-data build` command again: it continues where it stopped."
        if missing is not None:
            remedy = f"There is no {missing}: check the path, or build such shards with `megabert-data build`."
        raise DataError(
            f"{path}: not there, so {path.parent} is no finished folder of shards. {remedy}", see="there-are-no-shards"
        )
    try:
        values = json.loads(path.read_bytes())
    except ValueError as error:
        raise DataError(f"{path}: damaged JSON ({error}). Build the shards again.") from error
    if not isinstance(values, dict):
        raise DataError(f"{path}: not a JSON object. Build the shards again.")
    return values


def _check_file(path: Path, index: int, entry: ShardEntry) -> None:
    if Path(entry.file).name != entry.file:
        raise DataError(f"{path}: shards[{index}].file={entry.file!r} is no plain file name.")
    if not (path.parent / entry.file).is_file():
        raise DataError(
            f"{path.parent / entry.file}: listed in the manifest but not there. "
            "Copy it again, or run the same `megabert-data build` command, which writes it again.",
            see="a-shard-is-missing-or-damaged",
        )
