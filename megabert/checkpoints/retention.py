"""Which checkpoints of a run stay: old ones pruned, half-written ones removed, replaced ones given back.

Everything here happens by renaming first: a folder never has the name of a step while its content is incomplete.
"""

import logging
import shutil
from collections.abc import Collection
from pathlib import Path

from megabert.checkpoints.format import find_damage, folder_name, read_checkpoint_manifest, steps_in
from megabert.errors import CheckpointError

logger = logging.getLogger(__name__)

TEMPORARY = ".tmp_"
"""Begins every name in the folder that is no checkpoint yet, or no longer."""
_REPLACED = f"{TEMPORARY}replaced_"


def set_aside_name(folder: Path) -> Path:
    """Return the name that a checkpoint has while another one of the same step takes its place."""
    return folder.with_name(f"{_REPLACED}{folder.name}")


def recover(checkpoints_dir: Path) -> None:
    """Give back its name to a checkpoint that a run had set aside when it was killed; rank 0 calls it at the start."""
    for aside in checkpoints_dir.glob(f"{_REPLACED}*"):
        target = checkpoints_dir / aside.name.removeprefix(_REPLACED)
        if not target.exists():
            aside.rename(target)


def remove_temporaries(checkpoints_dir: Path) -> None:
    """Remove what a failed or killed write left, after `recover` has given back what is worth keeping."""
    recover(checkpoints_dir)
    for path in checkpoints_dir.glob(f"{TEMPORARY}*"):
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def prune(
    checkpoints_dir: Path, keep_last: int, protect: Collection[int] = (), *, keep_every: int | None = None
) -> list[int]:
    """Delete old checkpoints, and temporary folders that a killed run left; rank 0 calls it.

    The newest ``keep_last`` stay, the best steps that they recorded, those in ``protect``, and the first checkpoint at
    or after every multiple of ``keep_every`` steps. Before anything is deleted, one of these is read back completely;
    if all of them are damaged, the newest good one among the old stays as well.

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
    if all(find_damage(checkpoints_dir / folder_name(step)) for step in kept):
        good = next((step for step in old if find_damage(checkpoints_dir / folder_name(step)) is None), None)
        logger.warning("%s: every newer checkpoint is damaged; keeping step %s", checkpoints_dir, good)
        old = [step for step in old if step != good]
    _delete(checkpoints_dir, old)
    return old


def forget_after(checkpoints_dir: Path, step: int) -> list[int]:
    """Delete the checkpoints newer than the one that a run returns to; rank 0 calls it, and gets their steps."""
    newer = [candidate for candidate in steps_in(checkpoints_dir) if candidate > step]
    _delete(checkpoints_dir, newer)
    return newer


def _delete(checkpoints_dir: Path, steps: list[int]) -> None:
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
