"""Attention within packed sequences of unequal lengths."""
