"""``python -m integration.programs.slow_profile``: rank 0 takes WRITING_S to write a profile, longer than a step may.

A step has ``watchdog.min_step_s`` and no more.
"""

import time

from integration.programs.instead import run_megabert

from megabert.observability.profiler import StepProfiler
from megabert.training.recovery import watchdog

WRITING_S = 6.0
close = StepProfiler.close


def close_slowly(profiler, step):
    if profiler._profile is not None:
        time.sleep(WRITING_S)
    close(profiler, step)


if __name__ == "__main__":
    StepProfiler.close = close_slowly
    watchdog._HANGS_AFTER_P99 = 0
    run_megabert()
