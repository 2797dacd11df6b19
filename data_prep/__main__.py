"""``megabert-data`` and ``python -m data_prep``."""

import sys

from megabert.settings.command_line.safe_path import leave_out_working_folder

leave_out_working_folder()

from megabert.settings.command_line.signals import SIGNALS  # noqa: E402

if __name__ != "__mp_main__":  # a worker process leaves signals to its parent
    SIGNALS.install("megabert-data")

from data_prep.cli import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
