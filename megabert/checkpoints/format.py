"""A checkpoint on disk: one safetensors file per rank and a checkpoint manifest, each verified by SHA-256.

    checkpoints/latest                              the name of the newest checkpoint, for people and scripts
    checkpoints/config.yaml                         a copy of the configuration of the run
    checkpoints/step_00000100/manifest.json         which file holds which elements, and the trainer's state
    checkpoints/step_00000100/rank_00000.safetensors
        master/NAME/START                           elements of parameter NAME from START on: the float32 weights,
        exp_avg/NAME/START                          the optimizer's tensors, such as Adam's first moment
        exp_avg_sq/NAME/START                       and its second
        average/NAME/START                          the moving average of the weights, in runs that keep one

All tensors are float32 and one-dimensional. The manifest is written last, and the folder gets its name when everything
in it is on the disk, so a folder with the name of a step is complete unless the disk itself has damaged it.
"""

import hashlib
import json
import math
import os
import re
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from megabert.foundation.errors import CheckpointError, DataError
from megabert.foundation.files import read_small, sha256_file, write_durably
from megabert.foundation.json_files import parse_values, seal, unseal

if TYPE_CHECKING:
    from torch import Tensor

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
LATEST = "latest"
MASTER = "master"
"""Kind of the tensors that hold the weights; the optimizer's have the names of ``BaseOptimizer.state_names``."""
AVERAGE = "average"
"""Kind of the moving average, which only some runs keep."""
_STEP_FOLDER = re.compile(r"step_([0-9]{8,})")
_CONTEXT, _REMEDY = "checkpoint", "Use another step."


Elements = Annotated[int, Field(ge=0, le=2**48)]  # more than any model has: a larger number is damage


@dataclass(frozen=True)
class StoredFile:
    """Size and digest of one file of a checkpoint."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class StoredParameter:
    """Where the elements of one parameter are stored."""

    shape: list[Elements]
    fragments: list[tuple[str, Elements, Elements]] = field(default_factory=list)
    """File, first element, number of elements. Together they cover the parameter exactly once."""


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """How far a run was when it wrote a checkpoint: the part of the trainer's state that other programs read."""

    step: int
    """Optimizer updates over all phases."""
    phase: int
    """Index of the phase, from 0."""
    phase_step: int
    """Optimizer updates in this phase."""
    samples: int
    """Instances consumed."""
    data_sha256: list[list[str]]
    """Identity of each phase's shards, one for each source."""
    metrics: dict[str, float]
    """Held-out metrics of the phase's latest validation."""
    metrics_step: int | None
    """Step of that validation."""
    best_step: int | None
    """Step with the lowest held-out loss of the last phase."""


@dataclass(frozen=True, kw_only=True)
class CheckpointManifest:
    """The content of a checkpoint: which file holds which elements, and the states of engine and trainer."""

    step: int
    world_size: int
    """Ranks that wrote it. Any number can read it."""
    zero_stage: int
    """ZeRO stage that wrote it. Any stage can read it."""
    files: dict[str, StoredFile]
    parameters: dict[str, StoredParameter]
    engine_state: dict[str, dict[str, bool | int | float]]
    """State of the loss scaler (`Engine.state`), and the decay of the moving average where one is kept."""
    trainer_state: dict[str, Any]
    """Counters and data position (`TrainerState.to_dict`)."""
    versions: dict[str, str]
    format_version: int = FORMAT_VERSION

    @property
    def has_average(self) -> bool:
        """Whether it holds a moving average of the weights."""
        return AVERAGE in self.engine_state

    @property
    def run(self) -> RunSummary:
        """How far the run was."""
        where = f"trainer state of step {self.step}"
        return parse_values(self.trainer_state, RunSummary, where=where, remedy=_REMEDY, error=CheckpointError)


def folder_name(step: int) -> str:
    """Return the name of a step's folder."""
    return f"step_{step:08d}"


def steps_in(checkpoints_dir: Path) -> list[int]:
    """Return the steps that have a folder, newest first."""
    if not checkpoints_dir.is_dir():
        return []
    matches = (_STEP_FOLDER.fullmatch(path.name) for path in checkpoints_dir.iterdir() if path.is_dir())
    return sorted((int(match[1]) for match in matches if match), reverse=True)


def key_of(kind: str, parameter: str, start: int) -> str:
    """Return a fragment's key within a safetensors file."""
    return f"{kind}/{parameter}/{start}"


def _header(vectors: "list[tuple[str, Tensor]]") -> bytes:
    """Return the safetensors header for float32 vectors in this order.

    A safetensors file is the header's length (8 bytes, little-endian), the header (JSON, padded with spaces to a
    multiple of 8 bytes so that the tensors are aligned), and the bytes of the tensors.
    """
    entries: dict[str, Any] = {}
    position = 0
    for key, tensor in vectors:
        end = position + 4 * tensor.numel()
        entries[key] = {"dtype": "F32", "shape": [tensor.numel()], "data_offsets": [position, end]}
        position = end
    text = json.dumps(entries, separators=(",", ":")).encode("ascii")
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def write_tensors(path: Path, vectors: "list[tuple[str, Tensor]]") -> StoredFile:
    """Write float32 vectors as a safetensors file.

    ``safetensors.torch.save_file`` would hold all tensors in memory once more, and the file would have to be read back
    for its SHA-256. The format is simple enough to be written directly, hashed on the way.

    Raises:
        OSError: For instance ENOSPC on a full disk. The caller has to remove the unfinished file.
    """
    digest, size = hashlib.sha256(), 0
    with open(path, "xb", buffering=0) as file:

        def write(content: Any) -> None:
            nonlocal size
            view = memoryview(content).cast("B")
            digest.update(view)
            size += len(view)
            while view:  # unbuffered: one call may take only a part
                view = view[file.write(view) :]

        write(_header(vectors))
        for _, tensor in vectors:
            if tensor.numel():  # memoryview cannot cast an empty buffer
                write(tensor.detach().cpu().float().contiguous().numpy().data)  # copies only from a GPU
        os.fsync(file.fileno())  # on the disk before any manifest names it
    return StoredFile(size, digest.hexdigest())


def write_checkpoint_manifest(folder: Path, manifest: CheckpointManifest) -> None:
    """Write the manifest; it begins with a SHA-256 of the rest."""
    write_durably(folder / MANIFEST, seal(asdict(manifest), _CONTEXT))


def read_checkpoint_manifest(folder: Path) -> CheckpointManifest:
    """Read a manifest and check its own SHA-256.

    Raises:
        CheckpointError: It is missing, damaged or of another format version.
    """
    path = folder / MANIFEST
    try:
        text = read_small(path)
    except FileNotFoundError:
        raise CheckpointError(f"{path}: missing; this is not a whole checkpoint. {_REMEDY}") from None
    except OSError as failure:
        raise CheckpointError(f"{path}: cannot be read ({failure.strerror}). {_REMEDY}") from None
    unsealed = partial(unseal, text, context=_CONTEXT, where=str(path), remedy=_REMEDY, error=CheckpointError)
    # Before the types: a later version may have other fields.
    version = unsealed(cls=dict[str, Any]).get("format_version")
    if version != FORMAT_VERSION:
        raise CheckpointError(
            f"{path}: format version {version}; this megabert reads {FORMAT_VERSION}. Use the version that wrote it."
        )
    manifest: CheckpointManifest = unsealed(cls=CheckpointManifest)
    _check_fragments(manifest, path)
    return manifest


def _check_fragments(manifest: CheckpointManifest, path: Path) -> None:
    """Refuse shapes that the files do not fill: memory of such a size would be asked for before they are read."""
    held = dict.fromkeys(manifest.files, 0)
    for name, stored in manifest.parameters.items():
        end = 0
        for file, start, numel in sorted(stored.fragments, key=lambda fragment: fragment[1]):
            if file not in held or start != end:
                raise CheckpointError(f"{path}: the fragments of {name} do not cover it once. Use another step.")
            end += numel
            held[file] += numel
        if end != math.prod(stored.shape):
            raise CheckpointError(
                f"{path}: {name} has shape {stored.shape}, its fragments {end} elements. Use another step."
            )
    for file, elements in held.items():
        if 4 * elements > manifest.files[file].bytes:
            raise CheckpointError(f"{path}: {file} is too small for its {elements} elements. Use another step.")


def find_damage(folder: Path) -> str | None:
    """Read a checkpoint completely and return the first damage, naming the file, or None if it is whole."""
    try:
        manifest = read_checkpoint_manifest(folder)
    except CheckpointError as error:
        return str(error)
    for name, stored in manifest.files.items():
        path = folder / name
        try:  # the size first: a file that was cut off needs no reading
            if path.stat().st_size != stored.bytes:
                return f"{path}: {path.stat().st_size} bytes, {stored.bytes} were written"
            if sha256_file(path) != stored.sha256:
                return f"{path}: its SHA-256 is not the one that was written"
        except DataError as error:
            return str(error)
        except OSError as error:
            return f"{path}: {error.strerror}"
    return None
