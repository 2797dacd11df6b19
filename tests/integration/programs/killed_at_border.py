"""``python -m integration.programs.killed_at_border``: megabert whose ranks kill themselves as a phase begins.

The checkpoint of the phase's end is on the disk; new positions are filled, and no step has been made with them.
"""

import os
import signal

from integration.programs.instead import run_megabert


def fill_and_die(fill_new_positions, *arguments):
    fill_new_positions(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    run_megabert(fill_new_positions=fill_and_die)
