"""``megabert``, ``python -m megabert``, and ``--module megabert`` of a launcher."""

import sys

from megabert.settings.command_line.safe_path import leave_out_working_folder

leave_out_working_folder()

from megabert.settings.command_line.signals import SIGNALS  # noqa: E402

if __name__ != "__mp_main__":  # a worker process leaves signals to its parent
    SIGNALS.install("megabert")

from megabert.distributed.parent_death import die_with_launcher, is_launched  # noqa: E402

if is_launched():  # before the seconds of imports in which the launcher may be killed
    die_with_launcher()

from megabert.cli import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
