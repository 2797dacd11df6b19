"""Attention within packed sequences of unequal lengths."""

from megabert.ops.attention.api import AttentionBlocks, attention, plan_attention

__all__ = ["AttentionBlocks", "attention", "plan_attention"]
