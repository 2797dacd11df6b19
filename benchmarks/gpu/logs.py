"""What a part prints, in a file as well; and the files that are taken from a machine that will be wiped."""

import os
import sys
import tarfile
import threading
from pathlib import Path
from typing import IO

KEPT = ("*.log", "metrics.jsonl", "*.ncu-rep", "curves/*.json", "speedrun.json")
"""Files of parts that are results."""


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


def keep(runs: Path, output: Path) -> None:
    """Write ``logs.tar.gz`` anew, one file to take along with the files that all parts have left.

    Args:
        runs: Logs of parts, and run folders with theirs.
        output: Folder of the results.
    """
    archive, temporary = output / "logs.tar.gz", output / "logs.tar.gz.tmp"
    try:
        with tarfile.open(temporary, "w:gz") as content:
            for path in sorted({path for pattern in KEPT for path in runs.rglob(pattern)}):
                content.add(path, path.relative_to(runs))
        os.replace(temporary, archive)
    except OSError as error:  # logs that cannot be kept must not end the measuring
        print(f"{archive}: not written: {error}", file=sys.stderr)
