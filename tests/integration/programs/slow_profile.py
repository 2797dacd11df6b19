"""``python -m integration.programs.slow_profile``: rank 0 takes WRITING_S to write a profile, longer than a step may.

Tests start it in place of ``python -m megabert``. A step has ``watchdog.min_step_s`` and no more.
"""

import sys
import time

from megabert.cli import main
from megabert.observability.profiler import StepProfiler
from megabert.training.recovery import watchdog

WRITING_S = 6.0


def install() -> None:
    """Slow down what writes a profile, and fix the limit of a step."""
    original = StepProfiler.close

    def close_slowly(self, step):
        if self._profile is not None:
            time.sleep(WRITING_S)
        original(self, step)

    StepProfiler.close = close_slowly
    watchdog._HANGS_AFTER_P99 = 0


if __name__ == "__main__":
    install()
    sys.exit(main())
