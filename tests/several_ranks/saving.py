"""A checkpoint written at once, where a run has a thread write it."""

from pathlib import Path
from typing import Any

from megabert.checkpoints.saving import snapshot_of, write_snapshot

BEGUN = {"step": 0, "phase": 0, "phase_step": 0, "samples": 0, "data_sha256": [], "metrics": {}}
BEGUN |= {"metrics_step": None, "best_step": None}
"""What other programs read of a trainer that has made no step."""


def save_checkpoint(checkpoints_dir: Path, step: int, engine: Any, trainer_state: dict[str, Any], world: Any) -> None:
    """Write a checkpoint; every rank calls it, between steps."""
    write_snapshot(checkpoints_dir, snapshot_of(engine, step, BEGUN | trainer_state, world), world)
