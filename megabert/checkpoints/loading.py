"""Finding a good checkpoint and loading it, with any number of ranks and at any ZeRO stage.

DeepSpeed's own checkpoints store each rank's flat shards as they are, padding included, and load on the world size and
the stage that wrote them; its "universal" checkpoints need a conversion in between. We store slices of named parameters
(`saving.Snapshot`), so that on loading a rank reads the slices that its own fragments need, however these are cut now.
"""

import logging
import re
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from megabert.checkpoints import format
from megabert.checkpoints.saving import run_explained, stored_tensors
from megabert.distributed.process_group import World
from megabert.engine.engine import Engine
from megabert.foundation.errors import CheckpointError
from megabert.foundation.files import read_small
from megabert.models.convert import check_signal, is_finite
from megabert.models.embedding_sharing import whole_tables

logger = logging.getLogger(__name__)


class SliceReader:
    """Reads slices of a checkpoint's tensors, so that a rank reads its own fragments and no more."""

    def __init__(self, folder: Path, manifest: format.CheckpointManifest) -> None:
        """Open nothing yet: each file is opened when the first slice of it is needed."""
        self.folder, self.parameters = folder, manifest.parameters
        self.file = cache(lambda name: safe_open(folder / name, framework="pt"))

    def fill(self, kind: str, parameter: str, start: int, target: Tensor) -> None:
        """Copy ``target.numel()`` elements of a parameter, from ``start`` on, into ``target``.

        The stored slices are cut differently from this one if the world size or the ZeRO stage has changed, so it is
        put together from every stored slice that overlaps it. The slices cover the parameter exactly once: the manifest
        was refused otherwise.
        """
        end = start + target.numel()
        for name, stored_start, numel in self.parameters[parameter].fragments:
            first, stop = max(start, stored_start), min(end, stored_start + numel)
            if first < stop:
                stored = self.file(name).get_slice(format.key_of(kind, parameter, stored_start))
                if (stored.get_dtype(), stored.get_shape()) != ("F32", [numel]):
                    raise CheckpointError(
                        f"{self.folder}: {name} holds {stored.get_dtype()} of shape {stored.get_shape()} as {kind} of "
                        f"{parameter}, not {numel} numbers of float32. Use another step"
                    )
                target[first - start : stop - start].copy_(stored[first - stored_start : stop - stored_start])
        if kind in (format.MASTER, format.AVERAGE) and not is_finite(target):
            raise CheckpointError(
                f"{self.folder}: {parameter} holds NaN or infinite numbers, with which nothing can be computed. Use an "
                "earlier step"
            )


def load_checkpoint(folder: Path, engine: Engine, world: World) -> dict[str, Any]:
    """Fill masters and moments from a checkpoint of any world size and stage; return the trainer's state.

    Nothing is verified here: `find_checkpoint` has read every file and compared its SHA-256.

    Raises:
        CheckpointError: On every rank alike: the checkpoint holds another model, or a file cannot be read.
    """

    def fill() -> format.CheckpointManifest:
        manifest = format.read_checkpoint_manifest(folder)
        _check_same_model(manifest, engine)
        # Padding between fragments keeps its values: nobody reads it.
        reader = SliceReader(folder, manifest)
        for fragment in engine.fragments:
            for kind, flat in stored_tensors(engine, fragment.flat):
                # A fork may begin to average where the other run did not: with the weights that it begins with.
                stored = format.MASTER if kind == format.AVERAGE and not manifest.has_average else kind
                reader.fill(stored, fragment.parameter, fragment.start, fragment.view(flat))
        return manifest

    manifest = run_explained(world, folder, fill, doing="loading")
    engine.load_state(manifest.engine_state)
    engine.refresh()  # the model's weights follow the masters
    return manifest.trainer_state


def has_checkpoint(checkpoints_dir: Path) -> bool:
    """Return whether a checkpoint was ever recorded here, good or damaged. Such a run never starts from step 0."""
    return bool(format.steps_in(checkpoints_dir)) or (checkpoints_dir / format.LATEST).exists()


def find_checkpoint(
    checkpoints_dir: Path, which: str | int = "last", *, at_most: int | None = None, falls_back: bool = True
) -> Path:
    """Return a verified checkpoint.

    Args:
        checkpoints_dir: Folder of a run's checkpoints.
        which: ``last`` is the newest good one, with a warning if newer ones are damaged; ``best`` the one with the
            lowest held-out loss of the last phase; anything else a step.
        at_most: The last step that ``last`` looks at first. It takes a later one only if there is no other.
        falls_back: Whether ``last`` may be an older one. A run that resumes only loses some steps; a user who asks for
            the last model must not silently get an older one.

    Raises:
        CheckpointError: There is no checkpoint, all of them are damaged, or the one asked for is.
    """
    steps = format.steps_in(checkpoints_dir)
    if not steps:
        raise CheckpointError(f"{checkpoints_dir}: no checkpoint. Start a run with a new --run-dir.")
    step = which
    # The newest good checkpoint is the last one, and it knows which one is the best.
    if which in ("last", "best"):
        _warn_of_lost_checkpoint(checkpoints_dir, steps[0])
        early = [step for step in steps if at_most is None or step <= at_most]
        newest = _newest_good(checkpoints_dir, early or steps, falls_back=falls_back)
        if which == "last":
            return newest
        best = format.read_checkpoint_manifest(newest).run.best_step
        if best is None:
            raise CheckpointError(
                f"{newest}: no validation of the last phase is recorded yet, so none is the best. "
                "Use --checkpoint last or a step."
            )
        step = best
    # A step has to be there, and whole.
    if not re.fullmatch("0|[1-9][0-9]{0,14}", str(step)):
        raise CheckpointError(f"checkpoint {which!r}: allowed are last, best and a step: {steps}.")
    folder = checkpoints_dir / format.folder_name(int(step))
    if int(step) not in steps:
        raise CheckpointError(f"{folder}: no such checkpoint. There are checkpoints of steps {steps}.")
    problem = format.find_damage(folder)
    if problem is not None:
        others = [other for other in steps if other != int(step)]
        raise CheckpointError(f"{problem}. Checkpoint {which} is damaged: use another one, of steps {others}.")
    return folder


def read_masters(folder: Path, *, average: bool = False) -> dict[str, Tensor]:
    """Return the whole float32 parameters by name, from files that `find_checkpoint` has verified.

    If a discriminator was trained as a difference to its generator's embeddings, both tables are returned whole.

    Args:
        folder: The checkpoint.
        average: Whether to return their moving average.

    Raises:
        CheckpointError: A file can no longer be read, for instance because a live run has pruned the checkpoint, or the
            run keeps no average.
    """
    manifest = format.read_checkpoint_manifest(folder)
    if average and not manifest.has_average:
        raise CheckpointError(
            f"{folder}: holds no average of the weights, since average.decay was not set in that run. Take the trained "
            "weights."
        )
    # Each parameter is one slice, from its first element to its last.
    masters = {}
    try:
        reader = SliceReader(folder, manifest)
        for name, stored in manifest.parameters.items():
            masters[name] = torch.empty(stored.shape, dtype=torch.float32)
            reader.fill(format.AVERAGE if average else format.MASTER, name, 0, masters[name].view(-1))
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{folder}: cannot be read ({error}). Try again, or name another checkpoint.") from error
    check_signal(masters, str(folder))
    return whole_tables(masters)


def _warn_of_lost_checkpoint(checkpoints_dir: Path, newest: int) -> None:
    """Say so where ``latest`` names a later checkpoint than there is: somebody deleted it, or a copy is not whole."""
    try:
        name = read_small(checkpoints_dir / format.LATEST).decode("ascii").strip()
    except (OSError, UnicodeError):
        return  # nothing depends on the pointer
    if name > format.folder_name(newest) and not (checkpoints_dir / name[:255]).exists():  # a longer name is an error
        text = "%s names %.40r, which is not there; the newest checkpoint is %s"
        logger.warning(text, checkpoints_dir / format.LATEST, name, checkpoints_dir / format.folder_name(newest))


def _newest_good(checkpoints_dir: Path, steps: list[int], *, falls_back: bool) -> Path:
    """Return the first of some checkpoints, newest first, that is whole; say which ones are damaged."""
    problems: list[str] = []
    for step in steps:
        folder = checkpoints_dir / format.folder_name(step)
        problem = format.find_damage(folder)
        if problem is None:
            if problems and not falls_back:
                raise CheckpointError(
                    f"{'; '.join(problems).rstrip('.')}. The last checkpoint is damaged; take the newest good one with "
                    f"--checkpoint {step}, or export it so (megabert export) and name its folder."
                )
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


def _check_same_model(manifest: format.CheckpointManifest, engine: Engine) -> None:
    """Refuse a checkpoint whose parameters have other names or shapes than the model's."""
    ours = {name: list(shape) for name, shape in engine.shapes.items()}
    theirs = {name: stored.shape for name, stored in manifest.parameters.items()}
    if ours != theirs:
        names = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
        shown = ", ".join(f"{name}: {theirs.get(name)} saved, {ours.get(name)} wanted" for name in names[:5])
        raise CheckpointError(
            f"it holds another model: {len(names)} parameters differ ({shown}). "
            "Use the configuration of the run that wrote it"
        )
