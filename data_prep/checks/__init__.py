"""Checks of finished shards, and counts: of instances and, over the steps, of the corpus."""
