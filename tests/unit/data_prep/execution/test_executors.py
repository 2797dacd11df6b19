"""Worker processes: what their helpers inherit. Results and deaths of workers are tested by builds."""

import subprocess
import sys

from forked.client import environment_of_commands

HANG_UP = """
import os, signal, time
from multiprocessing import resource_tracker
from data_prep.execution.executors import ProcessExecutor

executor = ProcessExecutor(1)
helper = resource_tracker._resource_tracker._pid
os.kill(helper, signal.SIGHUP)
time.sleep(0.2)
print(os.waitpid(helper, os.WNOHANG))
"""


def test_the_helper_of_shared_memory_outlives_a_hang_up():
    done = subprocess.run(
        [sys.executable, "-c", HANG_UP], env=environment_of_commands(), capture_output=True, text=True
    )
    assert done.stdout == "(0, 0)\n", done.stderr  # it runs
