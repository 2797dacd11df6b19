"""Slices of a checkpoint's tensors: a rank reads what its own fragments need and no more."""

from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor

from megabert.checkpoints.format import CheckpointManifest, key_of
from megabert.errors import CheckpointError


class Reader:
    """Context manager; a file is opened when the first slice of it is needed."""

    def __init__(self, folder: Path, manifest: CheckpointManifest) -> None:
        self.folder = folder
        self.parameters = manifest.parameters
        self.files: dict[str, Any] = {}

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *exception: object) -> None:
        self.files.clear()

    def fill(self, kind: str, parameter: str, start: int, target: Tensor) -> None:
        """Copy ``target.numel()`` elements of a parameter from ``start`` on into ``target``."""
        end, filled = start + target.numel(), 0
        for name, first, numel in self.parameters[parameter].fragments:
            begin, stop = max(start, first), min(end, first + numel)
            if begin < stop:
                if name not in self.files:
                    self.files[name] = safe_open(self.folder / name, framework="pt")
                stored = self.files[name].get_slice(key_of(kind, parameter, first))
                target[begin - start : stop - start].copy_(stored[begin - first : stop - first])
                filled += stop - begin
        if filled != target.numel():
            raise CheckpointError(
                f"{self.folder}: {kind} of {parameter} has {filled} of the {target.numel()} elements from {start} on"
            )
