"""What a part prints, in a file as well; and the files that belong among the results, since a lent machine is wiped."""

import shutil
import sys
import threading
from pathlib import Path
from typing import IO

KEPT = ("*.ncu-rep",)
"""Files of a part that are results whether it fails or not."""


def copy_lines(source: IO[str], path: Path) -> threading.Thread:
    """Start to print a process's lines and to append them to a file; the thread ends with the process."""

    def copy() -> None:
        with path.open("a") as log:
            for line in source:
                log.write(line)
                log.flush()
                print(line, end="", flush=True)

    path.parent.mkdir(parents=True, exist_ok=True)
    thread = threading.Thread(target=copy, daemon=True)
    thread.start()
    return thread


def keep(runs: Path, output: Path, *, since: float, has_failed: bool) -> list[Path]:
    """Copy what a part wrote below ``runs`` to ``output``: reports, and if it failed, every log; return the copies.

    Args:
        runs: Logs of parts, and run folders with theirs.
        output: Folder of the results.
        since: When the part began, as a file's time of modification.
        has_failed: Whether the part ended early, or one of its rows failed.
    """
    copies = []
    for pattern in (*KEPT, *(("*.log",) if has_failed else ())):
        for path in sorted(runs.rglob(pattern)):
            # A second of slack: file systems round times.
            if path.stat().st_mtime < since - 1:
                continue
            copy = output / "logs" / path.relative_to(runs)
            copy.parent.mkdir(parents=True, exist_ok=True)
            try:
                shutil.copyfile(path, copy)
            except OSError as error:  # a log that cannot be copied must not end the measuring
                print(f"{path}: not copied to {copy}: {error}", file=sys.stderr)
            else:
                copies.append(copy)
    return copies
