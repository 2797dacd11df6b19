"""Cleaning documents: small rules that are switched on by name, and counted with examples of what they dropped."""

from data_prep.clean.cleaner import Cleaner

__all__ = ["Cleaner"]
