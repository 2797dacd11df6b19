"""``python -m integration.programs.failing_while_saving``: rank FAILING_RANK fails while a slow checkpoint is written.

Every rank's writer takes WRITING_S for the checkpoint of step 3. A step has ``watchdog.min_step_s`` and no more,
whatever the steps before it took: the watchdog of a rank that does not learn of the failure ends it long before the
writer is done.
"""

import time

from integration.programs.failing import fail
from integration.programs.instead import run_megabert

from megabert.training.recovery import watchdog
from megabert.training.run import checkpoint_writer

WRITING_S = 7.0
write_snapshot = checkpoint_writer.write_snapshot


def write_slowly(folder, snapshot, world):
    if snapshot.manifest.step == 3:
        time.sleep(WRITING_S)
    write_snapshot(folder, snapshot, world)


if __name__ == "__main__":
    checkpoint_writer.write_snapshot = write_slowly
    watchdog._HANGS_AFTER_P99 = 0
    run_megabert(accumulate=fail)
