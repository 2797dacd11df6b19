"""``python -m integration.programs.failing_while_saving``: rank FAILING_RANK fails while a slow checkpoint is written.

Tests start it in place of ``python -m megabert``. Every rank's writer takes WRITING_S for the checkpoint of step 3. A
step has ``watchdog.min_step_s`` and no more, whatever the steps before it took: the watchdog of a rank that does not
learn of the failure ends it long before the writer is done.
"""

import sys
import time

from integration.programs import failing

from megabert.cli import main
from megabert.training.recovery import watchdog
from megabert.training.run import checkpoint_writer

WRITING_S = 10.0


def install() -> None:
    """Slow the writer down, and fix the limit of a step."""
    original = checkpoint_writer.write_snapshot

    def write_slowly(folder, snapshot, world):
        if snapshot.manifest.step == 3:
            time.sleep(WRITING_S)
        original(folder, snapshot, world)

    checkpoint_writer.write_snapshot = write_slowly
    watchdog._HANGS_AFTER_P99 = 0


if __name__ == "__main__":
    failing.install()
    install()
    sys.exit(main())
