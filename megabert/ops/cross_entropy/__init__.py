"""Summed cross-entropy with its count of right answers."""

from megabert.ops.cross_entropy.api import cross_entropy

__all__ = ["cross_entropy"]
