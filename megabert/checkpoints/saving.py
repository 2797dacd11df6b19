"""Writing a checkpoint: every rank its own file, then rank 0 the manifest and the name."""

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
from megabert.distributed.all_or_none import run_on_all_ranks
from megabert.distributed.process_group import World
from megabert.engine.engine import Engine
from megabert.errors import CheckpointError, Echo
from megabert.schema.files import NO_SPACE, sync_folder, write_durably

Result = TypeVar("Result")
TEMPORARY = ".tmp_"
_REPLACED = f"{TEMPORARY}replaced_"
_MANIFEST_BYTES_PER_PIECE = 256  # generous: a name and two numbers


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """What a rank writes; nothing in it changes while training goes on, unless its tensors are the engine's own."""

    step: int
    pieces: list[Slice]
    tensors: list[tuple[str, Tensor]]
    """Key and float32 vector of master and moments of every piece."""
    shapes: dict[str, torch.Size]
    zero_stage: int
    engine_state: dict[str, Any]
    trainer_state: dict[str, Any]


def snapshot_of(engine: Engine, step: int, trainer_state: dict[str, Any], world: World) -> Snapshot:
    """Return what this rank has to write, as views: nothing is copied."""
    pieces = slices_of(engine, world)
    return Snapshot(
        step=step,
        pieces=pieces,
        tensors=stored_tensors(engine, pieces),
        shapes=engine.shapes,
        zero_stage=engine.zero_stage,
        engine_state=engine.state(),
        trainer_state=trainer_state,
    )


def write_snapshot(checkpoints_dir: Path, snapshot: Snapshot, world: World) -> Path:
    """Write a checkpoint; every rank calls it.

    A temporary folder is filled and fsynced, renamed to ``step_NNNNNNNN``, and ``latest`` names it at the very end.

    Args:
        checkpoints_dir: Folder of a run's checkpoints, on a file system that all ranks share.
        snapshot: This rank's share.
        world: Ranks; nothing else may use its control group meanwhile.

    Returns:
        The checkpoint's folder.

    Raises:
        CheckpointError: On every rank alike, for instance for a full disk; nothing half-written is left.
    """
    target = checkpoints_dir / folder_name(snapshot.step)
    temporary = checkpoints_dir / f"{TEMPORARY}{target.name}"
    sizes = [(key, tensor.numel()) for key, tensor in snapshot.tensors]
    bytes_to_write = len(header_of(sizes)) + 4 * sum(numel for _, numel in sizes)
    needed = world.gather(bytes_to_write + _MANIFEST_BYTES_PER_PIECE * len(snapshot.pieces))
    name = f"rank_{world.rank:05d}.safetensors"
    try:
        run_and_gather(
            world, target, lambda: _make_room(checkpoints_dir, temporary, sum(needed)) if world.is_main else None
        )
        files = run_and_gather(
            world, target, lambda: (name, write_tensors(temporary / name, snapshot.tensors), snapshot.pieces)
        )

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
    """Run ``work`` on every rank and return all results; if it fails on any, raise on all, naming folder and rank."""

    def named() -> Result:
        try:
            return work()
        except (OSError, SafetensorError, CheckpointError) as error:
            reason = (getattr(error, "strerror", None) or str(error)).rstrip(".")
            raise CheckpointError(
                f"{folder}: {doing} failed on rank {world.rank}: {reason}.{_remedy(error, doing)}",
                see="a-checkpoint-cannot-be-written" if doing == "saving" else "every-checkpoint-is-damaged",
            ) from error

    return world.gather(run_on_all_ranks(world, named))


def recover(checkpoints_dir: Path) -> None:
    """Give a checkpoint its name back that a killed run had set aside to replace it; rank 0 calls it, at the start."""
    for aside in checkpoints_dir.glob(f"{_REPLACED}*"):
        target = checkpoints_dir / aside.name.removeprefix(_REPLACED)
        if not target.exists():
            aside.rename(target)


def remove_temporaries(checkpoints_dir: Path) -> None:
    """Remove what a failed or killed write left; a checkpoint that it had set aside gets its name back."""
    recover(checkpoints_dir)
    for path in checkpoints_dir.glob(f"{TEMPORARY}*"):
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


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
    sync_folder(temporary)
    pointer = target.parent / f"{TEMPORARY}{LATEST}"
    write_durably(pointer, f"{target.name}\n".encode("ascii"))  # while a full disk can still be undone
    if target.exists():  # a damaged one that this run passed by, or one that a rollback changes
        aside = target.parent / f"{_REPLACED}{target.name}"
        target.rename(aside)
        try:
            temporary.rename(target)
        except OSError:
            aside.rename(target)
            raise
        shutil.rmtree(aside, ignore_errors=True)
    else:
        temporary.rename(target)
    sync_folder(target.parent)
    os.replace(pointer, target.parent / LATEST)
    sync_folder(target.parent)


def _manifest(
    snapshot: Snapshot, world: World, written: list[tuple[str, StoredFile, list[Slice]]]
) -> CheckpointManifest:
    parameters = {name: StoredParameter(list(shape)) for name, shape in snapshot.shapes.items()}
    for name, _, pieces in written:
        for piece in pieces:
            parameters[piece.parameter].fragments.append((name, piece.start, piece.numel))
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
