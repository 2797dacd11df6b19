"""Bias + dropout + residual + LayerNorm in one op."""
