"""Cross-entropy, summed, and the count of right answers."""

from megabert.ops.cross_entropy.api import cross_entropy

__all__ = ["cross_entropy"]
