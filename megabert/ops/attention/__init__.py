"""Attention within packed sequences of unequal lengths."""

from megabert.ops.attention.api import attention, plan_attention

__all__ = ["attention", "plan_attention"]
