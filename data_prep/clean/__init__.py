"""Cleaning documents: small rules, each switchable, each counted with examples."""

from data_prep.clean.cleaner import Cleaner

__all__ = ["Cleaner"]
