"""Writing a checkpoint: every rank writes its own file, then rank 0 the manifest, the folder's name and ``latest``.

A checkpoint is complete or absent, whatever fails. All files are written into ``.tmp_step_NNNNNNNN`` and synced; the
folder is renamed only after every rank has reported that its file is on the disk. If any rank fails (a full disk, a
lost mount), all of them raise the same error and the temporary folder is removed; if a rank dies, the folder stays
without a name and the next write removes it (`retention`).
"""

import os
import platform
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from torch import Tensor

import megabert
from megabert.checkpoints.format import (
    LATEST,
    CheckpointManifest,
    StoredFile,
    StoredParameter,
    folder_name,
    header_of,
    write_checkpoint_manifest,
    write_tensors,
)
from megabert.checkpoints.rank_slices import Slice, slices_of, stored_tensors
from megabert.checkpoints.retention import TEMPORARY, remove_temporaries, set_aside_name
from megabert.distributed.all_or_none import run_on_all_ranks
from megabert.distributed.process_group import World
from megabert.engine.engine import Engine
from megabert.errors import CheckpointError, Echo
from megabert.schema.files import NO_SPACE, replace_folder, sync_folder, write_durably

Result = TypeVar("Result")
_MANIFEST_BYTES_PER_SLICE = 256  # generous: a name and two numbers


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """What one rank writes. The tensors are the engine's own until `CheckpointWriter` has copied them."""

    step: int
    slices: list[Slice]
    tensors: list[tuple[str, Tensor]]
    """Key and float32 vector: the master and both moments of every slice."""
    shapes: dict[str, torch.Size]
    """Whole shape of every parameter of the model."""
    zero_stage: int
    engine_state: dict[str, Any]
    trainer_state: dict[str, Any]


def snapshot_of(engine: Engine, step: int, trainer_state: dict[str, Any], world: World) -> Snapshot:
    """Return what this rank has to write, as views: nothing is copied."""
    slices = slices_of(engine, world)
    return Snapshot(
        step=step,
        slices=slices,
        tensors=stored_tensors(engine, slices),
        shapes=engine.shapes,
        zero_stage=engine.zero_stage,
        engine_state=engine.state(),
        trainer_state=trainer_state,
    )


def write_snapshot(checkpoints_dir: Path, snapshot: Snapshot, world: World) -> Path:
    """Write a checkpoint; every rank calls it.

    Args:
        checkpoints_dir: Folder of a run's checkpoints, on a file system that all ranks share.
        snapshot: This rank's share.
        world: All ranks. Nothing else may use its control group meanwhile.

    Returns:
        The checkpoint's folder.

    Raises:
        CheckpointError: This rank could not write, for instance on a full disk. Nothing half-written is left.
        Echo: Another rank could not.
    """
    target = checkpoints_dir / folder_name(snapshot.step)
    temporary = checkpoints_dir / f"{TEMPORARY}{target.name}"
    # Sizes are known before anything is written, so that a disk that is too full is refused while it is untouched.
    sizes = [(key, tensor.numel()) for key, tensor in snapshot.tensors]
    bytes_to_write = len(header_of(sizes)) + 4 * sum(numel for _, numel in sizes)
    needed = world.gather(bytes_to_write + _MANIFEST_BYTES_PER_SLICE * len(snapshot.slices))
    name = f"rank_{world.rank:05d}.safetensors"
    try:
        # 1. Rank 0 makes an empty folder, if the disk has room for what all ranks will write.
        run_and_gather(
            world, target, lambda: _make_room(checkpoints_dir, temporary, sum(needed)) if world.is_main else None
        )
        # 2. Every rank writes its file and tells its size, its SHA-256, and which slices are in it.
        files = run_and_gather(
            world, target, lambda: (name, write_tensors(temporary / name, snapshot.tensors), snapshot.slices)
        )

        # 3. When all files are on the disk, rank 0 writes the manifest and gives the folder its name.
        def complete() -> None:
            write_checkpoint_manifest(temporary, _manifest(snapshot, world, files))
            _publish(temporary, target)

        run_and_gather(world, target, lambda: complete() if world.is_main else None)
    except (CheckpointError, Echo):
        if world.is_main:
            remove_temporaries(checkpoints_dir)
        raise
    return target


def run_and_gather(world: World, folder: Path, work: Callable[[], Result], *, doing: str = "saving") -> list[Result]:
    """Run ``work`` on every rank and return the results of all, in the order of ranks.

    Raises:
        CheckpointError: ``work`` failed on this rank. The message names the folder and the rank.
        Echo: It failed on another rank.
    """

    def explained() -> Result:
        try:
            return work()
        except (OSError, SafetensorError, CheckpointError) as error:
            reason = (getattr(error, "strerror", None) or str(error)).rstrip(".")
            raise CheckpointError(
                f"{folder}: {doing} failed on rank {world.rank}: {reason}.{_remedy(error, doing)}",
                see="a-checkpoint-cannot-be-written" if doing == "saving" else "every-checkpoint-is-damaged",
            ) from error

    return world.gather(run_on_all_ranks(world, explained))


def _remedy(error: Exception, doing: str) -> str:
    if isinstance(error, CheckpointError):
        return ""
    if getattr(error, "errno", None) in NO_SPACE:
        return " Free some space or name another --run-dir, then start again."
    return f" Check the folder and its permissions on that rank's host, then start again ({doing} changed nothing)."


def _make_room(checkpoints_dir: Path, temporary: Path, needed: int) -> None:
    checkpoints_dir.mkdir(parents=True, exist_ok=True)
    remove_temporaries(checkpoints_dir)
    free = shutil.disk_usage(checkpoints_dir).free
    if free < needed:
        raise CheckpointError(
            f"the disk is too full: {needed / 2**20:.1f} MiB are needed, {free / 2**20:.1f} MiB are free. "
            "Free some space, lower checkpoint.keep_last, or name another --run-dir, then start again"
        )
    temporary.mkdir()


def _publish(temporary: Path, target: Path) -> None:
    """Give the finished folder its name, then let ``latest`` name it.

    The pointer is written before the renames, under a temporary name: it is the last write that a full disk can refuse,
    and until then everything can be undone. From there on there are only renames.
    """
    sync_folder(temporary)
    pointer = target.parent / f"{TEMPORARY}{LATEST}"
    write_durably(pointer, f"{target.name}\n".encode("ascii"))
    # There may be a checkpoint of this step: a damaged one that was passed over, or one that a rollback repeats.
    replace_folder(temporary, target, aside=set_aside_name(target))
    os.replace(pointer, target.parent / LATEST)
    sync_folder(target.parent)


def _manifest(
    snapshot: Snapshot, world: World, written: list[tuple[str, StoredFile, list[Slice]]]
) -> CheckpointManifest:
    # The order of ranks and slices is that of the files, so that equal checkpoints have equal manifests.
    parameters = {name: StoredParameter(list(shape)) for name, shape in snapshot.shapes.items()}
    for name, _, slices in written:
        for part in slices:
            parameters[part.parameter].fragments.append((name, part.start, part.numel))
    return CheckpointManifest(
        step=snapshot.step,
        world_size=world.size,
        zero_stage=snapshot.zero_stage,
        files={name: stored for name, stored, _ in written},
        parameters=parameters,
        engine_state=snapshot.engine_state,
        trainer_state=snapshot.trainer_state,
        versions={
            "megabert": megabert.__version__,
            "torch": str(torch.__version__),
            "python": platform.python_version(),
        },
    )
