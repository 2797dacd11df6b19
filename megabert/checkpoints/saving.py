"""Writing a checkpoint, and which checkpoints of a run stay.

Every rank writes its own file, then rank 0 the manifest, the folder's name and ``latest``. A checkpoint is complete or
absent, whatever fails: all files are written into ``.tmp_step_NNNNNNNN`` and synced, and the folder is renamed only
after every rank has reported that its file is on the disk:

    .tmp_step_00000012/      written; a kill leaves it, and the next write removes it
    step_00000012/           renamed: from here on a start finds the checkpoint
    latest                   names it; a kill before this leaves the previous name, and nothing depends on it

If any rank fails (a full disk, a lost mount), all of them raise the same error and the temporary folder is removed.
Deleting, too, begins with a rename: a folder never has the name of a step while its content is incomplete.
"""

import errno
import logging
import os
import platform
import re
import shutil
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from torch import Tensor

import megabert
from megabert.checkpoints.format import (
    AVERAGE,
    LATEST,
    MASTER,
    CheckpointManifest,
    StoredFile,
    StoredParameter,
    find_damage,
    folder_name,
    key_of,
    read_checkpoint_manifest,
    steps_in,
    write_checkpoint_manifest,
    write_tensors,
)
from megabert.distributed.process_group import World, run_on_all_ranks
from megabert.engine.engine import Engine
from megabert.foundation.errors import CheckpointError, Echo
from megabert.foundation.files import atomic_write, sync_folder, write_durably
from megabert.foundation.full_disk import NO_SPACE
from megabert.foundation.whole_folders import replace_folder

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
TEMPORARY = ".tmp_"
"""Begins every name in the folder that is no checkpoint yet, or no longer."""
_REPLACED = f"{TEMPORARY}replaced_"
"""Begins the name that a checkpoint has while another one of the same step takes its place."""
_OURS = re.compile(rf"{re.escape(TEMPORARY)}({LATEST}|(replaced_|deleted_)?step_\d+)")
"""Names of temporaries that a write of ours can have left; nothing else in the folder is ever removed."""
_HEADER_BYTES_PER_TENSOR = 512  # generous: a name and two numbers, in the file's header and in the manifest


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """One rank's part of a checkpoint. The tensors are the engine's own until `CheckpointWriter` has copied them."""

    manifest: CheckpointManifest
    """What rank 0 will write; files and fragments are added when every rank's file is on the disk."""
    slices: list[tuple[str, int, int]]
    """Parameter, first element and number of elements of each part of a parameter that this rank writes."""
    tensors: list[tuple[str, Tensor]]
    """Key and float32 vector: what `stored_tensors` says, of every slice."""


def snapshot_of(engine: Engine, step: int, trainer_state: dict[str, Any], world: World) -> Snapshot:
    """Return this rank's part of a checkpoint, as views: nothing is copied.

    Under ZeRO the fragments of all ranks already are a partition of the model, so each rank writes its own. At stage 0
    every rank holds everything; each writes an equal share of every parameter, so that all disks and hosts take part.
    """
    # The slice of each fragment that this rank writes, and all tensors of that slice.
    slices, tensors = [], []
    for fragment in engine.fragments:
        first, stop = 0, fragment.numel
        if engine.is_replicated:
            first, stop = (fragment.numel * rank // world.size for rank in (world.rank, world.rank + 1))
        if first == stop:
            continue
        start = fragment.start + first
        slices.append((fragment.parameter, start, stop - first))
        for kind, flat in stored_tensors(engine, fragment.flat):
            tensors.append((key_of(kind, fragment.parameter, start), fragment.view(flat)[first:stop]))
    # The manifest, but for the files, which are not written yet.
    manifest = CheckpointManifest(
        step=step,
        world_size=world.size,
        zero_stage=engine.zero_stage,
        files={},
        parameters={name: StoredParameter(list(shape)) for name, shape in engine.shapes.items()},
        engine_state={**engine.state(), **({AVERAGE: {"decay": engine.average.decay}} if engine.average else {})},
        trainer_state=trainer_state,
        versions={
            "megabert": megabert.__version__,
            "torch": str(torch.__version__),
            "python": platform.python_version(),
        },
    )
    return Snapshot(manifest=manifest, slices=slices, tensors=tensors)


def stored_tensors(engine: Engine, flat: Tensor) -> list[tuple[str, Tensor]]:
    """Return a flat's tensors in a checkpoint, by kind: masters, optimizer state, and the average if there is one."""
    optimizer = engine.optimizer
    state = zip(optimizer.state_names, optimizer.moments(flat), strict=False)  # Muon's matrices have the first only
    average = [] if engine.average is None else [(AVERAGE, engine.average.of(flat))]
    return [(MASTER, flat), *state, *average]


def write_snapshot(checkpoints_dir: Path, snapshot: Snapshot, world: World) -> None:
    """Write a checkpoint; every rank calls it.

    Args:
        checkpoints_dir: Folder of a run's checkpoints, on a file system that all ranks share.
        snapshot: This rank's share.
        world: All ranks. Nothing else may use its control group meanwhile.

    Raises:
        CheckpointError: This rank could not write, for instance on a full disk. Nothing half-written is left.
        Echo: Another rank could not.
    """
    target = checkpoints_dir / folder_name(snapshot.manifest.step)
    temporary = checkpoints_dir / f"{TEMPORARY}{target.name}"
    name = f"rank_{world.rank:05d}.safetensors"
    # Sizes are known before anything is written, so that a disk that is too full is refused while it is untouched.
    mine = sum(4 * tensor.numel() + _HEADER_BYTES_PER_TENSOR for _, tensor in snapshot.tensors)
    needed = sum(world.gather(mine))
    try:
        # 1. Rank 0 makes an empty folder, if the disk has room for what all ranks will write.
        run_explained(world, target, lambda: _make_room(checkpoints_dir, temporary, needed) if world.is_main else None)
        # 2. Every rank writes its file and reports its size, its SHA-256, and the slices in it.
        stored = run_explained(world, target, lambda: write_tensors(temporary / name, snapshot.tensors))
        written = world.gather((name, stored, snapshot.slices))
        # 3. When all files are on the disk, rank 0 writes the manifest and gives the folder its name.
        run_explained(world, target, lambda: _complete(temporary, target, snapshot, written) if world.is_main else None)
    except (CheckpointError, Echo):
        if world.is_main:
            remove_temporaries(checkpoints_dir)
        raise


def run_explained(world: World, folder: Path, work: Callable[[], Result], *, doing: str = "saving") -> Result:
    """Run ``work``, which reads or writes files, on every rank; if it fails on any rank, fail on all.

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

    return run_on_all_ranks(world, explained)


def _remedy(error: Exception, doing: str) -> str:
    """Return the advice for an error, or nothing if its message has some."""
    if isinstance(error, CheckpointError):
        return ""
    if getattr(error, "errno", None) == errno.EFBIG:
        return " It would be larger than the limit of file size: raise it (ulimit -f unlimited), then start again."
    if getattr(error, "errno", None) in NO_SPACE:
        return " Free some space or name another --run-dir, then start again."
    return f" Check the folder and its permissions on that rank's host, then start again ({doing} changed nothing)."


def _make_room(checkpoints_dir: Path, temporary: Path, needed: int) -> None:
    """Make an empty temporary folder, if the disk has room for the checkpoint; rank 0 calls it."""
    checkpoints_dir.mkdir(parents=True, exist_ok=True)
    remove_temporaries(checkpoints_dir)
    free = shutil.disk_usage(checkpoints_dir).free
    if free < needed:
        raise CheckpointError(
            f"the disk is too full: {needed / 2**20:.1f} MiB are needed, {free / 2**20:.1f} MiB are free. "
            "Free some space, lower checkpoint.keep_last, or name another --run-dir, then start again"
        )
    temporary.mkdir()


def _complete(
    temporary: Path, target: Path, snapshot: Snapshot, written: list[tuple[str, StoredFile, list[tuple[str, int, int]]]]
) -> None:
    """Write the manifest and give the finished folder its name, then let ``latest`` name it.

    The pointer is written before the renames, under a temporary name: it is the last write that a full disk can refuse,
    and until then everything can be undone. From there on there are only renames.
    """
    # Ranks and slices come in the order of the files, so that equal checkpoints have equal manifests.
    manifest = snapshot.manifest
    for name, stored, slices in written:
        manifest.files[name] = stored
        for parameter, start, numel in slices:
            manifest.parameters[parameter].fragments.append((name, start, numel))
    write_checkpoint_manifest(temporary, manifest)
    sync_folder(temporary)
    pointer = target.parent / f"{TEMPORARY}{LATEST}"
    write_durably(pointer, f"{target.name}\n".encode("ascii"))
    # This step may have a checkpoint already: a damaged one, which the start ignored, or one from before a rollback.
    replace_folder(temporary, target, aside=target.with_name(f"{_REPLACED}{target.name}"))
    os.replace(pointer, target.parent / LATEST)
    sync_folder(target.parent)


def recover(checkpoints_dir: Path) -> None:
    """Give back its name to a checkpoint that a run had set aside when it was killed; rank 0 calls it at the start."""
    for aside in checkpoints_dir.glob(f"{_REPLACED}step_*"):
        target = checkpoints_dir / aside.name.removeprefix(_REPLACED)
        if not target.exists():
            aside.rename(target)


def remove_temporaries(checkpoints_dir: Path) -> None:
    """Remove the remains of a failed or killed write, after `recover` has given back a whole checkpoint among them."""
    recover(checkpoints_dir)
    for path in checkpoints_dir.glob(f"{TEMPORARY}*"):
        if not _OURS.fullmatch(path.name):  # somebody else's
            continue
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def prune(
    checkpoints_dir: Path, keep_last: int, protect: Collection[int] = (), *, keep_every: int | None = None
) -> list[int]:
    """Delete old checkpoints, and temporary folders that a killed run left; rank 0 calls it.

    The newest ``keep_last`` stay, the best steps that they recorded, those in ``protect``, and the first checkpoint at
    or after every multiple of ``keep_every`` steps. The newest good checkpoint stays in any case: checkpoints are
    read back completely, from the newest on, until one is good. Nothing is deleted if none is good.

    Returns:
        The steps that were deleted.
    """
    remove_temporaries(checkpoints_dir)
    steps = steps_in(checkpoints_dir)
    newest = steps[:keep_last]
    # If the newest turns out to be damaged, the run resumes from an older one, and that one's best has to be there too.
    protected = {*protect, *(best for step in newest if (best := _best_step(checkpoints_dir / folder_name(step))))}
    if keep_every is not None:
        # Steps come newest first, so that in the dictionary the lowest step of each interval overwrites the others.
        protected |= set({step // keep_every: step for step in steps}.values())
    kept = [step for step in steps if step in newest or step in protected]
    old = [step for step in steps if step not in kept]
    if not old:
        return []
    good = next((step for step in steps if find_damage(checkpoints_dir / folder_name(step)) is None), None)
    if good is None:
        logger.warning("%s: every checkpoint is damaged; none is deleted", checkpoints_dir)
        return []
    if good in old:
        logger.warning("%s: every newer checkpoint is damaged; keeping step %s", checkpoints_dir, good)
        old.remove(good)
    _delete(checkpoints_dir, old)
    return old


def forget_after(checkpoints_dir: Path, step: int) -> list[int]:
    """Delete the checkpoints after ``step``, to which a run returns; rank 0 calls it, and gets their steps."""
    newer = [candidate for candidate in steps_in(checkpoints_dir) if candidate > step]
    _delete(checkpoints_dir, newer)
    if newer:  # after: deleting makes room on a full disk
        atomic_write(checkpoints_dir / LATEST, f"{folder_name(step)}\n")
    return newer


def _delete(checkpoints_dir: Path, steps: list[int]) -> None:
    """Delete checkpoints, each renamed first."""
    for step in steps:
        doomed = checkpoints_dir / f"{TEMPORARY}deleted_{folder_name(step)}"
        (checkpoints_dir / folder_name(step)).rename(doomed)  # a kill in between leaves no half folder of that name
        shutil.rmtree(doomed, ignore_errors=True)


def _best_step(folder: Path) -> int | None:
    """Return the best step that a checkpoint recorded; a damaged one records none."""
    try:
        return read_checkpoint_manifest(folder).run.best_step
    except CheckpointError:
        return None
