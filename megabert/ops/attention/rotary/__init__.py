"""Attention within sequences whose queries and keys are turned by their positions, to all tokens or near ones."""
