"""A checkpoint written at once, where a run has a thread write it."""

from pathlib import Path
from typing import Any

from megabert.checkpoints.saving import snapshot_of, write_snapshot


def save_checkpoint(checkpoints_dir: Path, step: int, engine: Any, trainer_state: dict[str, Any], world: Any) -> None:
    """Write a checkpoint; every rank calls it, between steps."""
    write_snapshot(checkpoints_dir, snapshot_of(engine, step, trainer_state, world), world)
