"""Worker processes: what their helpers inherit. Results and deaths of workers are tested by builds."""

import os
import subprocess
import sys

from forked.client import environment_of_commands

from data_prep.execution.executors import WORTH_WORKERS
from data_prep.execution.mpi import executor_of_all_ranks

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


def test_a_small_input_is_left_to_this_process_unless_workers_are_asked_for():
    with executor_of_all_ranks(None, is_mpi=False) as by_default, executor_of_all_ranks(3, is_mpi=False) as asked:
        least = WORTH_WORKERS
        # On a single core there is no other process in any case.
        assert by_default.suited_to(least).workers == len(os.sched_getaffinity(0))
        assert by_default.suited_to(least - 1).workers == 1
        assert (asked.suited_to(1).workers, asked.suited_to(least).workers) == (3, 3)
