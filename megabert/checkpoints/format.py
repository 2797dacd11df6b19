"""A checkpoint on disk: one safetensors file a rank and a manifest, proved by SHA-256.

``step_00000100/rank_00000.safetensors`` holds this rank's fragments, ``master/NAME/START``, ``exp_avg/NAME/START`` and
``exp_avg_sq/NAME/START``, all float32 and one-dimensional. ``manifest.json`` says which file holds which elements of
which parameter, and carries the trainer's state. It is written last; a folder takes its name when it is complete.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from megabert.errors import CheckpointError, DataError
from megabert.schema import sha256_file, write_durably

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
LATEST = "latest"
KINDS = ("master", "exp_avg", "exp_avg_sq")
_STEP_FOLDER = re.compile(r"step_(\d{8,})")


@dataclass(frozen=True)
class StoredFile:
    """One file of a checkpoint."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class StoredParameter:
    """Where a parameter's elements are: (file, start, numel) covers it once."""

    shape: list[int]
    fragments: list[tuple[str, int, int]] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class CheckpointManifest:
    """What a checkpoint holds."""

    step: int
    world_size: int
    zero_stage: int
    files: dict[str, StoredFile]
    parameters: dict[str, StoredParameter]
    engine_state: dict[str, Any]
    trainer_state: dict[str, Any]
    versions: dict[str, str]
    format_version: int = FORMAT_VERSION


def folder_name(step: int) -> str:
    """Return the name of a step's folder."""
    return f"step_{step:08d}"


def steps_in(checkpoints_dir: Path) -> list[int]:
    """Return the steps of which there is a folder, newest first."""
    if not checkpoints_dir.is_dir():
        return []
    matches = (_STEP_FOLDER.fullmatch(path.name) for path in checkpoints_dir.iterdir() if path.is_dir())
    return sorted((int(match[1]) for match in matches if match), reverse=True)


def key_of(kind: str, parameter: str, start: int) -> str:
    """Return a fragment's key within a safetensors file."""
    return f"{kind}/{parameter}/{start}"


def header_of(pieces: Iterable[tuple[str, int]]) -> bytes:
    """Return the safetensors header for float32 vectors ``(key, numel)`` in this order."""
    entries: dict[str, Any] = {}
    position = 0
    for key, numel in pieces:
        entries[key] = {"dtype": "F32", "shape": [numel], "data_offsets": [position, position + 4 * numel]}
        position += 4 * numel
    text = json.dumps(entries, separators=(",", ":")).encode("ascii")
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def write_tensors(path: Path, pieces: list[tuple[str, Tensor]]) -> StoredFile:
    """Write float32 vectors as a safetensors file without holding a second copy, hash on the way, fsync.

    Raises:
        OSError: Also for a full disk, by its own number; what was written so far stays for the caller to remove.
    """
    digest, size = hashlib.sha256(), 0
    with open(path, "xb", buffering=0) as file:

        def write(content: Any) -> None:
            nonlocal size
            view = memoryview(content).cast("B")
            digest.update(view)
            size += len(view)
            while view:
                view = view[file.write(view) :]

        write(header_of((key, tensor.numel()) for key, tensor in pieces))
        for _, tensor in pieces:
            if tensor.numel():
                write(tensor.detach().to("cpu", torch.float32).contiguous().numpy().data)
        os.fsync(file.fileno())
    return StoredFile(size, digest.hexdigest())


def write_checkpoint_manifest(folder: Path, manifest: CheckpointManifest) -> None:
    """Write the manifest with its own SHA-256 beside the content."""
    content = asdict(manifest)
    document = {"sha256": _digest(content), "content": content}
    write_durably(folder / MANIFEST, json.dumps(document, indent=1).encode("utf-8"))


def read_checkpoint_manifest(folder: Path) -> CheckpointManifest:
    """Read a manifest and check its own SHA-256.

    Raises:
        CheckpointError: It is missing, damaged or of another format version.
    """
    path = folder / MANIFEST
    try:
        document = json.loads(path.read_bytes())
        content = document["content"]
        is_whole = document["sha256"] == _digest(content)
    except FileNotFoundError:
        raise CheckpointError(f"{path}: missing; this is not a whole checkpoint. Use another step.") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: damaged ({error}). Use another step.") from None
    if not is_whole:
        raise CheckpointError(f"{path}: damaged (its SHA-256 does not fit). Use another step.")
    if content["format_version"] != FORMAT_VERSION:
        raise CheckpointError(
            f"{path}: format version {content['format_version']}; this megabert reads {FORMAT_VERSION}. "
            "Use the version that wrote it."
        )
    content["files"] = {name: StoredFile(**stored) for name, stored in content["files"].items()}
    content["parameters"] = {
        name: StoredParameter(stored["shape"], [tuple(fragment) for fragment in stored["fragments"]])
        for name, stored in content["parameters"].items()
    }
    return CheckpointManifest(**content)


def find_damage(folder: Path) -> str | None:
    """Return what is wrong with a checkpoint, naming the file, or None after every SHA-256 was found to fit."""
    try:
        manifest = read_checkpoint_manifest(folder)
    except CheckpointError as error:
        return str(error)
    for name, stored in manifest.files.items():
        path = folder / name
        try:
            if path.stat().st_size != stored.bytes:
                return f"{path}: {path.stat().st_size} bytes, {stored.bytes} were written"
            if sha256_file(path) != stored.sha256:
                return f"{path}: its SHA-256 is not the one that was written"
        except DataError as error:
            return str(error)
        except OSError as error:
            return f"{path}: {error.strerror}"
    return None


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode("utf-8")).hexdigest()
