"""megabert with functions of its trainer in the place of others; tests start such programs in place of megabert."""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from megabert.cli import main
from megabert.training import trainer


def run_megabert(**functions: Callable[..., Any]) -> None:
    """Run the command line: ``accumulate=f`` calls ``f(accumulate, ...)`` where the trainer calls ``accumulate``."""
    for name, function in functions.items():
        setattr(trainer, name, partial(function, getattr(trainer, name)))
    sys.exit(main())
