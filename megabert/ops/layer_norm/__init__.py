"""Bias + dropout + residual + LayerNorm in one op."""

from megabert.ops.layer_norm.api import layer_norm

__all__ = ["layer_norm"]
