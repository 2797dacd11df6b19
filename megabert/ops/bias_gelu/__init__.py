"""Bias + GELU in one op."""

from megabert.ops.bias_gelu.api import bias_gelu

__all__ = ["bias_gelu"]
