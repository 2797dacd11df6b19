"""``megabert``, ``python -m megabert``, and ``--module megabert`` of a launcher."""

import sys

from megabert.command_line.safe_path import leave_out_working_folder
from megabert.distributed.parent_death import die_with_launcher, is_launched

leave_out_working_folder()
if is_launched():  # before the seconds of imports in which the launcher may be killed
    die_with_launcher()

from megabert.cli import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
