"""Checkpoints: fragments of every tensor and an index, written in the background, readable by any number of ranks."""
