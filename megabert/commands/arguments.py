"""Kinds of values that arguments of several commands take."""

import argparse


def positive(text: str) -> int:
    """Read a whole number of 1 or more, as ``type`` of an argument."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not 1 or more")
    return value
