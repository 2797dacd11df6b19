"""Arguments of several commands, and kinds of values that they take."""

import argparse


def positive(text: str) -> int:
    """Read a whole number of 1 or more, as ``type`` of an argument."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not 1 or more")
    return value


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add ``--model`` and ``--checkpoint``, which ``export.sources.open_source`` reads."""
    parser.add_argument("--model", required=True, metavar="DIR|RUN", help="run folder or Hugging Face folder")
    parser.add_argument("--checkpoint", default="last", help="last, best or a step, of a run folder (default: last)")
