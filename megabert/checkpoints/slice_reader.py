"""Reading slices of a checkpoint's tensors, so that a rank reads what its own fragments need and no more."""

from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor

from megabert.checkpoints.format import CheckpointManifest, key_of
from megabert.errors import CheckpointError


class SliceReader:
    """Context manager over a checkpoint's files; each is opened when the first slice of it is needed."""

    def __init__(self, folder: Path, manifest: CheckpointManifest) -> None:
        self.folder = folder
        self.parameters = manifest.parameters
        self.files: dict[str, Any] = {}

    def __enter__(self) -> "SliceReader":
        return self

    def __exit__(self, *exception: object) -> None:
        self.files.clear()

    def fill(self, kind: str, parameter: str, start: int, target: Tensor) -> None:
        """Copy ``target.numel()`` elements of a parameter, from ``start`` on, into ``target``.

        The slices that were written and the one that is wanted are cut differently where the world size or the ZeRO
        stage has changed, so it is put together from every stored slice that overlaps it.
        """
        end, filled = start + target.numel(), 0
        for name, stored_start, numel in self.parameters[parameter].fragments:
            first, stop = max(start, stored_start), min(end, stored_start + numel)
            if first < stop:
                if name not in self.files:
                    self.files[name] = safe_open(self.folder / name, framework="pt")
                stored = self.files[name].get_slice(key_of(kind, parameter, stored_start))
                target[first - start : stop - start].copy_(stored[first - stored_start : stop - stored_start])
                filled += stop - first
        if filled != target.numel():
            raise CheckpointError(
                f"{self.folder}: {kind} of {parameter} has {filled} of the {target.numel()} elements from {start} on"
            )
