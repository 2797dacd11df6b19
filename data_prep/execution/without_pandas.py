"""Keeps pandas, which no code here needs, out of the processes of a build."""

import sys


def leave_out_pandas() -> None:
    """Let pyarrow do without pandas in this process, unless it is imported already.

    pyarrow imports pandas for its first array, if it is installed, to recognize its series: half a second of a process.
    """
    sys.modules.setdefault("pandas", None)  # type: ignore[arg-type]  # an import then fails as if it were not installed
