"""The disk that a run's checkpoints take."""

from megabert.checkpoints.format import KINDS
from megabert.config.run import RunConfig
from megabert.planning.memory import GIB

BYTES_PER_PARAMETER = 4 * len(KINDS)
"""Float32 masters and two moments."""


def checkpoint_gib(parameters: int) -> float:
    """Return the size of one checkpoint."""
    return parameters * BYTES_PER_PARAMETER / GIB


def describe_checkpoints(config: RunConfig, parameters: int) -> str:
    """Return what a run's checkpoints take at most, in words."""
    one, most = checkpoint_gib(parameters), config.most_checkpoints
    return f"checkpoints: {one:.2f} GiB each, up to {most} at a time: {most * one:.2f} GiB"
