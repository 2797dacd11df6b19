"""``python -m integration.programs.killed_at_border``: megabert whose ranks kill themselves as a phase begins.

Tests start it in place of ``python -m megabert``. The checkpoint of the phase's end is on the disk; new positions are
filled, and no step has been made with them.
"""

import os
import signal
import sys

from megabert.cli import main
from megabert.training import trainer


def install() -> None:
    """Kill the process after new positions have been filled."""
    original = trainer.fill_new_positions

    def killing(*arguments):
        original(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    trainer.fill_new_positions = killing


if __name__ == "__main__":
    install()
    sys.exit(main())
