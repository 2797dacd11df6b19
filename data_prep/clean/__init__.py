"""Cleaning documents: small rules that are switched on by name, and counted with examples of dropped text."""
