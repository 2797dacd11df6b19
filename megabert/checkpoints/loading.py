"""Checkpoints that any world size and any ZeRO stage can write and read.

DeepSpeed's own load on like stages only. Here every rank writes its fragments of the float32 masters and of both
moments; on loading, a rank reads the slices that its own fragments need.
"""

import logging
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from megabert.checkpoints.format import (
    KINDS,
    LATEST,
    CheckpointManifest,
    find_damage,
    folder_name,
    read_checkpoint_manifest,
    steps_in,
)
from megabert.checkpoints.reader import Reader
from megabert.checkpoints.saving import TEMPORARY, remove_temporaries, run_and_gather
from megabert.distributed.process_group import World
from megabert.engine.engine import Engine
from megabert.errors import CheckpointError

logger = logging.getLogger(__name__)


def load_checkpoint(folder: Path, engine: Engine, world: World) -> dict[str, Any]:
    """Fill masters and moments from a checkpoint of any world size and stage; return the trainer's state.

    ``find_checkpoint`` has verified the files; each rank reads its own slices only.

    Raises:
        CheckpointError: On every rank alike: another model, or files that cannot be read.
    """

    def fill() -> CheckpointManifest:
        manifest = read_checkpoint_manifest(folder)
        _check_same_model(folder, manifest, engine)
        with Reader(folder, manifest) as reader:
            for fragment in engine.fragments:
                moments = engine.optimizer.moments(fragment.flat)
                for kind, flat in zip(KINDS, (fragment.flat, *moments), strict=True):
                    reader.fill(kind, fragment.parameter, fragment.start, fragment.view(flat))
        return manifest

    manifest = run_and_gather(world, folder, fill, doing="loading")[world.rank]
    engine.load_state(manifest.engine_state)
    engine.refresh()
    return manifest.trainer_state


def has_checkpoint(checkpoints_dir: Path) -> bool:
    """Tell whether a checkpoint was ever recorded here, good or not: then a run never starts fresh."""
    return bool(steps_in(checkpoints_dir)) or (checkpoints_dir / LATEST).exists()


def find_checkpoint(checkpoints_dir: Path, which: str | int = "last", *, at_most: int | None = None) -> Path:
    """Return a verified checkpoint.

    Args:
        checkpoints_dir: Folder of a run's checkpoints.
        which: ``last``: the newest good one, saying so if newer ones are damaged; ``best``: the one with the lowest
            held-out loss of the last phase; or a step.
        at_most: ``last`` takes none above this step, unless there is no other.

    Raises:
        CheckpointError: There is none, none is good, or the one asked for is damaged.
    """
    steps = steps_in(checkpoints_dir)
    if not steps:
        raise CheckpointError(f"{checkpoints_dir}: no checkpoint. Start a run with a new --run-dir.")
    if which == "last":
        return _newest_good(checkpoints_dir, [step for step in steps if at_most is None or step <= at_most] or steps)
    if which == "best":
        newest = _newest_good(checkpoints_dir, steps)
        step = read_checkpoint_manifest(newest).trainer_state.get("best_step")
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
    problem = find_damage(folder)
    if problem is not None:
        raise CheckpointError(f"{problem}. Checkpoint {which} is damaged: use last, or one of the steps {steps}.")
    return folder


def read_masters(folder: Path) -> dict[str, Tensor]:
    """Return every parameter whole, in float32, by name; ``find_checkpoint`` has verified the files.

    Raises:
        CheckpointError: A file cannot be read any more, for instance because a live run has dropped the checkpoint.
    """
    manifest = read_checkpoint_manifest(folder)
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


def prune(
    checkpoints_dir: Path, keep_last: int, protect: Collection[int] = (), *, keep_every: int | None = None
) -> list[int]:
    """Delete old checkpoints, and temporary folders that a killed run left; rank 0 calls it.

    Kept are the newest ``keep_last``, the best steps that these recorded, those in ``protect``, and the first at or
    after every multiple of ``keep_every`` steps; at least one of the newest is read back and found to be good, else the
    newest good one among the old is kept too.

    Returns:
        The steps that were deleted.
    """
    remove_temporaries(checkpoints_dir)
    steps = steps_in(checkpoints_dir)
    newest = steps[:keep_last]
    # Should the newest turn out damaged, an older one is gone back to, and its best has to be there as well.
    protected = {*protect, *(best for step in newest if (best := _best_step(checkpoints_dir / folder_name(step))))}
    if keep_every is not None:
        protected |= set({step // keep_every: step for step in steps}.values())  # newest first: the lowest one stays
    kept = [step for step in steps if step in newest or step in protected]
    old = [step for step in steps if step not in kept]
    if not old:
        return []
    if all(find_damage(checkpoints_dir / folder_name(step)) for step in kept):
        good = next((step for step in old if find_damage(checkpoints_dir / folder_name(step)) is None), None)
        logger.warning("%s: every newer checkpoint is damaged; keeping step %s", checkpoints_dir, good)
        old = [step for step in old if step != good]
    _delete(checkpoints_dir, old)
    return old


def forget_after(checkpoints_dir: Path, step: int) -> list[int]:
    """Delete the checkpoints that are newer than one that a run goes back to; rank 0 calls it."""
    newer = [found for found in steps_in(checkpoints_dir) if found > step]
    _delete(checkpoints_dir, newer)
    return newer


def _delete(checkpoints_dir: Path, steps: list[int]) -> None:
    for step in steps:
        doomed = checkpoints_dir / f"{TEMPORARY}deleted_{folder_name(step)}"
        (checkpoints_dir / folder_name(step)).rename(doomed)  # never half a folder under a good name
        shutil.rmtree(doomed, ignore_errors=True)


def _best_step(folder: Path) -> int | None:
    """Return the best step that a checkpoint recorded; a damaged one records none."""
    try:
        step = read_checkpoint_manifest(folder).trainer_state.get("best_step")
    except CheckpointError:
        return None
    return None if step is None else int(step)


def _newest_good(checkpoints_dir: Path, steps: list[int]) -> Path:
    problems: list[str] = []
    for step in steps:
        folder = checkpoints_dir / folder_name(step)
        problem = find_damage(folder)
        if problem is None:
            if problems:
                logger.warning(
                    "damaged checkpoint: %s; going on with the previous good one, %s", "; ".join(problems), folder
                )
            return folder
        problems.append(problem)
    raise CheckpointError(
        f"{checkpoints_dir}: every checkpoint is damaged: {'; '.join(problems)}. A run that recorded a checkpoint "
        "never starts fresh: restore a copy, or start over with a new --run-dir.",
        see="every-checkpoint-is-damaged",
    )


def _check_same_model(folder: Path, manifest: CheckpointManifest, engine: Engine) -> None:
    ours = {name: list(shape) for name, shape in engine.shapes.items()}
    theirs = {name: stored.shape for name, stored in manifest.parameters.items()}
    if ours != theirs:
        names = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
        shown = ", ".join(f"{name}: {theirs.get(name)} saved, {ours.get(name)} wanted" for name in names[:5])
        raise CheckpointError(
            f"it holds another model: {len(names)} parameters differ ({shown}). "
            "Use the configuration of the run that wrote it"
        )
