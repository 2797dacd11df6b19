"""The manifest beside a set of instance shards; written last, so its absence means unfinished."""

import hashlib
import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from megabert.errors import DataError
from megabert.schema.files import atomic_write
from megabert.schema.metadata import FORMAT_VERSION, ShardMetadata

MANIFEST_NAME = "manifest.json"


@dataclass(frozen=True)
class ShardEntry:
    """One shard file."""

    file: str
    """Name inside the folder."""
    split: Literal["train", "validation"]
    """Held-out documents are ``validation``."""
    rows: int
    """Instances."""
    tokens: int
    """Tokens of all instances, special ones counted."""
    masked_tokens: int
    """Positions to predict; 0 where masking is dynamic."""
    sha256: str
    """Of the file's bytes."""
    bucket: int
    """Which part of the documents the first segments came from."""
    duplicate: int
    """Which of the ``dupe_factor`` passes made it, from 0."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The shards of one sequence length. Rows are numbered globally over the order of ``shards``."""

    metadata: ShardMetadata
    """What holds for all shards."""
    shards: list[ShardEntry]
    """In the order that numbers the rows."""
    config: dict[str, Any] = field(default_factory=dict)
    """The build's full configuration."""
    versions: dict[str, str] = field(default_factory=dict)
    """Packages that took part."""
    statistics: dict[str, Any] = field(default_factory=dict)
    """Counts of the build: documents, sentences, lengths, labels, masks, what was dropped and why."""

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
        """Hex digest of what the instances are: metadata, and split, rows and SHA-256 of each shard in order.

        Paths in the configuration, package versions and counts do not enter: a copied or repeated build is the same.
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
        DataError: No manifest (an unfinished build), damaged JSON, another format version, no shards, a shard
            file that is not there, or counts that contradict themselves.
    """
    path = Path(folder) / MANIFEST_NAME
    values = _load(path)
    if values.get("format_version") != FORMAT_VERSION:
        raise DataError(
            f"{path}: format_version={values.get('format_version')!r}, this megabert reads {FORMAT_VERSION}. "
            "Build the shards again, or use the version of megabert that wrote them."
        )
    missing = [key for key in ("metadata", "shards", "totals") if key not in values]
    if missing:
        raise DataError(f"{path}: lacks {', '.join(missing)}. Build the shards again.")
    shards = [_entry(path, index, entry) for index, entry in enumerate(values["shards"])]
    if not shards:
        raise DataError(f"{path}: lists no shards. Build them again with `megabert-data build`.")
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


def _entry(path: Path, index: int, values: Any) -> ShardEntry:
    names = {item.name for item in fields(ShardEntry)}
    if not isinstance(values, dict) or set(values) != names:
        raise DataError(f"{path}: shards[{index}] has not exactly the fields {', '.join(sorted(names))}.")
    entry = ShardEntry(**values)
    if Path(entry.file).name != entry.file:
        raise DataError(f"{path}: shards[{index}].file={entry.file!r} is no plain file name.")
    if not (path.parent / entry.file).is_file():
        raise DataError(
            f"{path.parent / entry.file}: listed in the manifest but not there. "
            "Copy it again, or run the same `megabert-data build` command, which makes it anew.",
            see="a-shard-is-missing-or-damaged",
        )
    return entry
