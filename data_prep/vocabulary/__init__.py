"""Vocabularies: words counted by all workers, training on them, and how good the result is on held-out text."""
