"""How often a run reads its corpus."""

from megabert.data.shard_set import ShardSet

MAX_PASSES = 40
"""Devlin et al. 2019 made about 40 epochs; more repeat text that the model has learned by heart."""


def passes_over(shards: ShardSet, instances: int) -> float:
    """Return the passes over the corpus that so many instances make.

    Args:
        shards: Training split. Each of its duplicates holds the whole corpus once, masked and paired differently.
        instances: Instances that a phase takes.
    """
    duplicates = len({shard.duplicate for shard in shards.shards})
    return instances * duplicates / shards.num_rows


def warn_of(passes: float) -> list[str]:
    """Return a warning where a run makes more passes than are known to help, as lines of text."""
    if passes <= MAX_PASSES:
        return []
    return [
        f"WARNING: {passes:,.1f} passes over the corpus, more than {MAX_PASSES}. BERT itself made about 40; a model "
        "that reads the same text more often learns it by heart. Add text, or take fewer steps (--phases.N.steps)."
    ]
