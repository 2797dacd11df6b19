"""Bias + GELU in one op."""
