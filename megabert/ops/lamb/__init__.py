"""LAMB's two passes over flat shards, with norms of each parameter."""

from megabert.ops.lamb.api import Coefficients, SlotFragment, lamb_passes
