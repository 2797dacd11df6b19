"""Arguments that several commands take, and kinds of values."""

import argparse
from pathlib import Path


def positive(text: str) -> int:
    """Read a whole number of 1 or more, as ``type`` of an argument."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not 1 or more")
    return value


def add_config_files(parser: argparse.ArgumentParser, *, under: str) -> None:
    """Add ``--config``.

    Args:
        parser: A command's parser, without positional arguments, which further files would swallow.
        under: What the files come after, for the help.
    """
    parser.add_argument(
        "--config",
        type=Path,
        action="extend",
        nargs="+",
        default=[],
        metavar="FILE",
        help=f"YAML files that change fields, after {under} and before flags; later ones win",
    )


def add_stops(parser: argparse.ArgumentParser, *, dry_run: str) -> None:
    """Add ``--dry-run`` and ``--print-config``, which end a command before it begins its work."""
    parser.add_argument("--dry-run", action="store_true", help=f"{dry_run}, and stop")
    parser.add_argument("--print-config", action="store_true", help="print the resolved configuration, and stop")


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add ``--device``."""
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="default: auto, a GPU if any")


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add ``--model`` and ``--checkpoint``, which name the weights that ``megabert.export.sources`` opens."""
    parser.add_argument("--model", required=True, metavar="DIR|RUN", help="run folder or Hugging Face folder")
    add_checkpoint(parser)


def add_checkpoint(parser: argparse.ArgumentParser) -> None:
    """Add ``--checkpoint``."""
    text = "of a run folder: last, best (lowest held-out loss within the last phase) or a step (default: last)"
    parser.add_argument("--checkpoint", default="last", metavar="WHICH", help=text)
