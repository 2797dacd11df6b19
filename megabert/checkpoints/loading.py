"""Finding a good checkpoint and loading it, with any number of ranks and at any ZeRO stage.

DeepSpeed's own checkpoints store each rank's flat shards as they are, padding included, and load on the world size and
the stage that wrote them; its "universal" checkpoints need a conversion in between. We store slices of named parameters
(`rank_slices`), so that on loading a rank reads the slices that its own fragments need, however these are cut now.
"""

import logging
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
from megabert.checkpoints.saving import run_and_gather
from megabert.checkpoints.slice_reader import SliceReader
from megabert.distributed.process_group import World
from megabert.engine.engine import Engine
from megabert.errors import CheckpointError

logger = logging.getLogger(__name__)


def load_checkpoint(folder: Path, engine: Engine, world: World) -> dict[str, Any]:
    """Fill masters and moments from a checkpoint of any world size and stage; return the trainer's state.

    Nothing is verified here: `find_checkpoint` has read every file and compared its SHA-256.

    Raises:
        CheckpointError: On every rank alike: the checkpoint holds another model, or a file cannot be read.
    """

    def fill() -> CheckpointManifest:
        manifest = read_checkpoint_manifest(folder)
        _check_same_model(folder, manifest, engine)
        # Padding between fragments keeps its values: nobody reads it.
        with SliceReader(folder, manifest) as reader:
            for fragment in engine.fragments:
                moments = engine.optimizer.moments(fragment.flat)
                for kind, flat in zip(KINDS, (fragment.flat, *moments), strict=True):
                    reader.fill(kind, fragment.parameter, fragment.start, fragment.view(flat))
        return manifest

    manifest = run_and_gather(world, folder, fill, doing="loading")[world.rank]
    engine.load_state(manifest.engine_state)
    engine.refresh()  # the model's weights follow the masters
    return manifest.trainer_state


def has_checkpoint(checkpoints_dir: Path) -> bool:
    """Tell whether a checkpoint was ever recorded here, good or damaged. Such a run never starts from step 0."""
    return bool(steps_in(checkpoints_dir)) or (checkpoints_dir / LATEST).exists()


def find_checkpoint(checkpoints_dir: Path, which: str | int = "last", *, at_most: int | None = None) -> Path:
    """Return a verified checkpoint.

    Args:
        checkpoints_dir: Folder of a run's checkpoints.
        which: ``last`` is the newest good one, with a warning if newer ones are damaged; ``best`` the one with the
            lowest held-out loss of the last phase; anything else a step.
        at_most: Where ``last`` begins to look: at the newest checkpoint that is not above this step. Above it only if
            there is no other.

    Raises:
        CheckpointError: There is no checkpoint, all of them are damaged, or the one asked for is.
    """
    steps = steps_in(checkpoints_dir)
    if not steps:
        raise CheckpointError(f"{checkpoints_dir}: no checkpoint. Start a run with a new --run-dir.")
    if which == "last":
        return _newest_good(checkpoints_dir, [step for step in steps if at_most is None or step <= at_most] or steps)
    if which == "best":
        newest = _newest_good(checkpoints_dir, steps)
        step = read_checkpoint_manifest(newest).run.best_step
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
    """Return the whole float32 parameters by name, from files that `find_checkpoint` has verified.

    Raises:
        CheckpointError: A file can no longer be read, for instance because a live run has pruned the checkpoint.
    """
    manifest = read_checkpoint_manifest(folder)
    masters = {}
    try:
        with SliceReader(folder, manifest) as reader:
            for name, stored in manifest.parameters.items():
                whole = torch.empty(stored.shape, dtype=torch.float32)
                reader.fill("master", name, 0, whole.view(-1))
                masters[name] = whole
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{folder}: cannot be read ({error}). Try again, or name another checkpoint.") from error
    return masters


def _newest_good(checkpoints_dir: Path, steps: list[int]) -> Path:
    problems: list[str] = []
    for step in steps:
        folder = checkpoints_dir / folder_name(step)
        problem = find_damage(folder)
        if problem is None:
            if problems:
                logger.warning(
                    "damaged checkpoint: %s; continuing with the previous good one, %s", "; ".join(problems), folder
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
