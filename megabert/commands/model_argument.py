"""The model of a command that looks into one: opened as fast as its name allows."""

from argparse import Namespace
from typing import TYPE_CHECKING

from megabert.command_line.terminal import loading

if TYPE_CHECKING:
    from megabert.export.sources import Source


def open_model(options: Namespace) -> "Source":
    """Open the weights that ``--model`` and ``--checkpoint`` name; refuse a folder without a model before torch loads."""
    from megabert.export.model_folder import kind_of_folder

    kind_of_folder(options.model)
    with loading("PyTorch"):
        from megabert.export.sources import open_source
    return open_source(options.model, options.checkpoint or "last")
