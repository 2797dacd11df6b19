"""LAMB's two passes over flat shards, with norms of each parameter."""

from megabert.ops.lamb.api import Coefficients, Segment, apply_update, compute_update

__all__ = ["Coefficients", "Segment", "apply_update", "compute_update"]
