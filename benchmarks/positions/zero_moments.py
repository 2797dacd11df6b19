"""``python -m benchmarks.positions.zero_moments``: megabert whose new positions begin with moments of zero."""

import sys
from typing import Any

from megabert.cli import main
from megabert.engine.engine import Engine
from megabert.training import new_positions


def install() -> None:
    """Wrap the filling of rows: put all moments back after it."""
    original = new_positions.tile_rows

    def without_moments(engine: Engine, *arguments: Any, **options: Any) -> None:
        moments = [moment for fragment in engine.fragments for moment in engine.optimizer.moments(fragment.flat)]
        copies = [moment.clone() for moment in moments]
        original(engine, *arguments, **options)
        for moment, copy in zip(moments, copies, strict=True):
            moment.copy_(copy)

    new_positions.tile_rows = without_moments


if __name__ == "__main__":
    install()
    sys.exit(main())
