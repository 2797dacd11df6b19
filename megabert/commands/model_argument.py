"""The model of a command that looks into one: opened as fast as its name allows."""

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from megabert.command_line.terminal import loading
from megabert.files import check_regular

if TYPE_CHECKING:
    from megabert.export.sources import Source


def open_model(options: Namespace, *inputs: Path) -> "Source":
    """Open the weights that ``--model`` and ``--checkpoint`` name.

    A wrong folder, or a wrong file among ``inputs``, which the command reads, is refused before torch loads.
    """
    from megabert.export.model_folder import kind_of_folder

    kind_of_folder(options.model)
    for path in inputs:
        check_regular(path)
    with loading("PyTorch"):
        from megabert.export.sources import open_source
    return open_source(options.model, options.checkpoint or "last")
