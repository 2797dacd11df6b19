"""Checkpoints that any world size and any ZeRO stage can write and read.

DeepSpeed's own load on like stages only. Here every rank writes its fragments of the float32 masters and of both
moments; on loading, a rank reads the slices that its own fragments need.
"""

import logging
import os
import platform
import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from torch import Tensor

import megabert
from megabert.distributed.checkpoint_format import (
    KINDS,
    LATEST,
    Manifest,
    StoredFile,
    StoredParameter,
    damage,
    folder_name,
    header_of,
    read_manifest,
    steps_in,
    write_manifest,
    write_tensors,
)
from megabert.distributed.checkpoint_pieces import Piece, pieces_of, stored_tensors
from megabert.distributed.checkpoint_reader import Reader
from megabert.distributed.engine import Engine
from megabert.distributed.process_group import World
from megabert.distributed.together import on_all
from megabert.errors import CheckpointError
from megabert.schema.files import NO_SPACE, sync_folder, write_durably

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
_TEMPORARY = ".tmp_"
_MANIFEST_BYTES_PER_PIECE = 256  # generous: a name and two numbers


def save_checkpoint(
    checkpoints_dir: Path, step: int, engine: Engine, trainer_state: dict[str, Any], world: World
) -> Path:
    """Write a checkpoint; every rank calls it, between steps.

    A temporary folder is filled and fsynced, renamed to ``step_NNNNNNNN``, and ``latest`` names it at the very end.

    Args:
        checkpoints_dir: Folder of a run's checkpoints, on a file system that all ranks share.
        step: Optimizer updates so far.
        engine: Between steps: no gradients are kept.
        trainer_state: JSON-able; given back by ``load_checkpoint``.
        world: Ranks.

    Returns:
        The checkpoint's folder.

    Raises:
        CheckpointError: On every rank alike, for instance for a full disk; nothing half-written is left.
    """
    target = checkpoints_dir / folder_name(step)
    temporary = checkpoints_dir / f"{_TEMPORARY}{target.name}"
    pieces = pieces_of(engine, world)
    tensors = stored_tensors(engine, pieces)
    bytes_to_write = len(header_of((key, t.numel()) for key, t in tensors)) + sum(4 * t.numel() for _, t in tensors)
    needed = world.gather(bytes_to_write + _MANIFEST_BYTES_PER_PIECE * len(pieces))
    name = f"rank_{world.rank:05d}.safetensors"
    try:
        _together(world, target, lambda: _make_room(checkpoints_dir, temporary, sum(needed)) if world.is_main else None)
        files = _together(world, target, lambda: (name, write_tensors(temporary / name, tensors), pieces))

        def complete() -> None:
            write_manifest(temporary, _manifest(step, engine, trainer_state, world, files))
            _publish(temporary, target)

        _together(world, target, lambda: complete() if world.is_main else None)
    except CheckpointError:
        if world.is_main:
            _remove_temporaries(checkpoints_dir)
        raise
    return target


def load_checkpoint(folder: Path, engine: Engine, world: World) -> dict[str, Any]:
    """Fill masters and moments from a checkpoint of any world size and stage; return the trainer's state.

    ``find_checkpoint`` has verified the files; each rank reads its own slices only.

    Raises:
        CheckpointError: On every rank alike: another model, or files that cannot be read.
    """

    def fill() -> Manifest:
        manifest = read_manifest(folder)
        _check_same_model(folder, manifest, engine)
        with Reader(folder, manifest) as reader:
            for fragment in engine.fragments:
                moments = engine.optimizer.moments(fragment.flat)
                for kind, flat in zip(KINDS, (fragment.flat, *moments), strict=True):
                    reader.fill(kind, fragment.parameter, fragment.start, fragment.view(flat))
        return manifest

    manifest = _together(world, folder, fill, doing="loading")[world.rank]
    engine.load_state(manifest.engine_state)
    engine.refresh()
    return manifest.trainer_state


def has_checkpoint(checkpoints_dir: Path) -> bool:
    """Tell whether a checkpoint was ever recorded here, good or not: then a run never starts fresh."""
    return bool(steps_in(checkpoints_dir)) or (checkpoints_dir / LATEST).exists()


def find_checkpoint(checkpoints_dir: Path, which: str | int = "last") -> Path:
    """Return a verified checkpoint.

    Args:
        checkpoints_dir: Folder of a run's checkpoints.
        which: ``last``: the newest good one, saying so if newer ones are damaged; ``best``: the one with the lowest
            held-out loss of the last phase; or a step.

    Raises:
        CheckpointError: There is none, none is good, or the one asked for is damaged.
    """
    steps = steps_in(checkpoints_dir)
    if not steps:
        raise CheckpointError(f"{checkpoints_dir}: no checkpoint. Start a run with a new --run-dir.")
    if which == "last":
        return _newest_good(checkpoints_dir, steps)
    if which == "best":
        newest = _newest_good(checkpoints_dir, steps)
        step = read_manifest(newest).trainer_state.get("best_step")
        if step is None:
            raise CheckpointError(
                f"{newest}: no validation of the last phase is recorded yet, so none is the best. "
                "Use --checkpoint last or a step."
            )
    else:
        try:
            step = int(which)
        except ValueError:
            raise CheckpointError(f"checkpoint {which!r}: allowed are last, best and a step: {steps}.") from None
    folder = checkpoints_dir / folder_name(int(step))
    if int(step) not in steps:
        raise CheckpointError(f"{folder}: no such checkpoint. There are those of steps {steps}.")
    problem = damage(folder)
    if problem is not None:
        raise CheckpointError(f"{problem}. Checkpoint {which} is damaged: use last, or one of the steps {steps}.")
    return folder


def read_masters(folder: Path) -> dict[str, Tensor]:
    """Return every parameter whole, in float32, by name; ``find_checkpoint`` has verified the files.

    Raises:
        CheckpointError: A file cannot be read any more, for instance because a live run has dropped the checkpoint.
    """
    manifest = read_manifest(folder)
    masters = {}
    try:
        with Reader(folder, manifest) as reader:
            for name, stored in manifest.parameters.items():
                whole = torch.empty(stored.shape, dtype=torch.float32)
                reader.fill("master", name, 0, whole.view(-1))
                masters[name] = whole
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{folder}: cannot be read ({error}). Try again, or name another checkpoint.") from error
    return masters


def prune(checkpoints_dir: Path, keep_last: int, protect: Collection[int] = ()) -> list[int]:
    """Delete old checkpoints, and temporary folders that a killed run left; rank 0 calls it.

    Kept are the newest ``keep_last``, the best steps that these recorded, and those in ``protect``; at least one of the
    kept is read back and found to be good, else the newest good one among the old is kept too.

    Returns:
        The steps that were deleted.
    """
    _remove_temporaries(checkpoints_dir)
    steps = steps_in(checkpoints_dir)
    newest = steps[:keep_last]
    # Should the newest turn out damaged, an older one is gone back to, and its best has to be there as well.
    protected = {*protect, *(best for step in newest if (best := _best_step(checkpoints_dir / folder_name(step))))}
    kept = [step for step in steps if step in newest or step in protected]
    old = [step for step in steps if step not in kept]
    if not old:
        return []
    if all(damage(checkpoints_dir / folder_name(step)) for step in kept):
        good = next((step for step in old if damage(checkpoints_dir / folder_name(step)) is None), None)
        logger.warning("%s: every newer checkpoint is damaged; keeping step %s", checkpoints_dir, good)
        old = [step for step in old if step != good]
    for step in old:
        doomed = checkpoints_dir / f"{_TEMPORARY}deleted_{folder_name(step)}"
        (checkpoints_dir / folder_name(step)).rename(doomed)  # never half a folder under a good name
        shutil.rmtree(doomed, ignore_errors=True)
    return old


def _best_step(folder: Path) -> int | None:
    """Return the best step that a checkpoint recorded; a damaged one records none."""
    try:
        step = read_manifest(folder).trainer_state.get("best_step")
    except CheckpointError:
        return None
    return None if step is None else int(step)


def _newest_good(checkpoints_dir: Path, steps: list[int]) -> Path:
    problems: list[str] = []
    for step in steps:
        folder = checkpoints_dir / folder_name(step)
        problem = damage(folder)
        if problem is None:
            if problems:
                logger.warning(
                    "damaged checkpoint: %s; going on with the previous good one, %s", "; ".join(problems), folder
                )
            return folder
        problems.append(problem)
    raise CheckpointError(
        f"{checkpoints_dir}: every checkpoint is damaged: {'; '.join(problems)}. A run that recorded a checkpoint "
        "never starts fresh: restore a copy, or start over with a new --run-dir."
    )


def _together(world: World, folder: Path, work: Callable[[], Result], *, doing: str = "saving") -> list[Result]:
    """Run ``work`` on every rank and return all results; if it fails on any, raise on all, naming folder and rank."""

    def named() -> Result:
        try:
            return work()
        except (OSError, SafetensorError, CheckpointError) as error:
            reason = (getattr(error, "strerror", None) or str(error)).rstrip(".")
            raise CheckpointError(
                f"{folder}: {doing} failed on rank {world.rank}: {reason}.{_remedy(error, doing)}"
            ) from error

    return world.gather(on_all(world, named))


def _remedy(error: Exception, doing: str) -> str:
    if isinstance(error, CheckpointError):
        return ""
    if getattr(error, "errno", None) in NO_SPACE:
        return " Free some space or name another --run-dir, then start again."
    return f" Check the folder and its permissions on that rank's host, then start again ({doing} changed nothing)."


def _make_room(checkpoints_dir: Path, temporary: Path, needed: int) -> None:
    checkpoints_dir.mkdir(parents=True, exist_ok=True)
    _remove_temporaries(checkpoints_dir)
    free = shutil.disk_usage(checkpoints_dir).free
    if free < needed:
        raise CheckpointError(
            f"the disk is too full: {needed / 2**20:.1f} MiB are needed, {free / 2**20:.1f} MiB are free. "
            "Free some space, lower checkpoint.keep_last, or name another --run-dir, then start again"
        )
    temporary.mkdir()


def _remove_temporaries(checkpoints_dir: Path) -> None:
    for path in checkpoints_dir.glob(f"{_TEMPORARY}*"):
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def _publish(temporary: Path, target: Path) -> None:
    sync_folder(temporary)
    pointer = target.parent / f"{_TEMPORARY}{LATEST}"
    write_durably(pointer, f"{target.name}\n".encode("ascii"))  # while a full disk can still be undone
    if target.exists():  # a damaged one that this run passed by
        aside = target.parent / f"{_TEMPORARY}replaced_{target.name}"
        target.rename(aside)
        temporary.rename(target)
        shutil.rmtree(aside, ignore_errors=True)
    else:
        temporary.rename(target)
    sync_folder(target.parent)
    os.replace(pointer, target.parent / LATEST)
    sync_folder(target.parent)


def _manifest(
    step: int,
    engine: Engine,
    trainer_state: dict[str, Any],
    world: World,
    written: list[tuple[str, StoredFile, list[Piece]]],
) -> Manifest:
    parameters = {name: StoredParameter(list(shape)) for name, shape in engine.shapes.items()}
    for name, _, pieces in written:
        for piece in pieces:
            parameters[piece.parameter].fragments.append((name, piece.start, piece.numel))
    return Manifest(
        step=step,
        world_size=world.size,
        zero_stage=engine.zero_stage,
        files={name: stored for name, stored, _ in written},
        parameters=parameters,
        engine_state=engine.state(),
        trainer_state=trainer_state,
        versions={
            "megabert": megabert.__version__,
            "torch": str(torch.__version__),
            "python": platform.python_version(),
        },
    )


def _check_same_model(folder: Path, manifest: Manifest, engine: Engine) -> None:
    ours = {name: list(shape) for name, shape in engine.shapes.items()}
    theirs = {name: stored.shape for name, stored in manifest.parameters.items()}
    if ours != theirs:
        names = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
        shown = ", ".join(f"{name}: {theirs.get(name)} saved, {ours.get(name)} wanted" for name in names[:5])
        raise CheckpointError(
            f"it holds another model: {len(names)} parameters differ ({shown}). "
            "Use the configuration of the run that wrote it"
        )
