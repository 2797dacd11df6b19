"""Probes of a model in training: minimal pairs, scored on masked copies of their sentences."""
