"""Rows of a benchmark part: each saved once measured, skipped when resumed, measured again where it failed."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.clock import COMPILED_IN_WINDOWS, is_broken, median_readings, metered, synchronize

Row = dict[str, Any]
BROKEN = 77
"""Exit code of a part whose process can measure nothing more: a new one measures what is left."""


class SpoiltProcess(RuntimeError):
    """What failed leaves its process unable to measure more, though the device still answers."""


class Rows:
    """The rows of one part, in ``FOLDER/PART.json``."""

    def __init__(self, path: Path, settings: dict[str, Any], *, deadline: float, keep_failed: bool = False) -> None:
        """Read what an earlier run left, if its settings were the same.

        Args:
            path: The file.
            settings: What a row depends on: device, versions, revision, size.
            deadline: When no further row is started, in seconds of ``time.monotonic``, which all processes share.
            keep_failed: Do not try again what failed earlier.
        """
        self.path = path
        self.keep_failed = keep_failed
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.settings = settings
        self.deadline = deadline
        self.rows: dict[str, Row] = {}
        self.is_complete = False
        self.left_out: list[str] = []
        if path.exists():
            earlier = json.loads(path.read_text())
            if earlier["settings"] == settings:
                self.rows = earlier["rows"]

    def remaining_s(self) -> float:
        """Return the seconds that the part has left."""
        return self.deadline - time.monotonic()

    def measure(self, name: str, function: Callable[[], Row], *, is_peer: bool = False) -> Row | None:
        """Return the row ``name``: an earlier run's, or ``function()``'s.

        An exception becomes the row's ``error``, or ``not_run`` for somebody else's code, which may not run here.

        Raises:
            SystemExit: With BROKEN, the row saved, where nothing more can run on the device in this process.
        """
        if name in self.rows and (self.keep_failed or "error" not in self.rows[name]):
            return self.rows[name]
        if self.remaining_s() <= 0:
            self.left_out.append(name)
            return None
        started, is_spoilt = time.monotonic(), False
        COMPILED_IN_WINDOWS.clear()
        try:
            with metered(self.device):
                row = function()
                synchronize(self.device)  # a fault belongs to the row whose kernel made it
            row |= median_readings()
        except Exception as error:  # one failed row must not cost the others
            is_spoilt = isinstance(error, SpoiltProcess)
            # The first sentence says what is missing; what torch adds about builds and backends fills a table.
            reason = f"{type(error).__name__}: {error!s}".splitlines()[0].split(". ")[0]
            row = {"not_run" if is_peer else "error": reason[:300]}
        if COMPILED_IN_WINDOWS:
            row["compiled_in_window"] = list(COMPILED_IN_WINDOWS)
        row["measured_in_s"] = round(time.monotonic() - started, 2)
        self.rows[name] = row
        self.save()
        print(f"{self.path.stem} | {name} | " + json.dumps(row), flush=True)
        if is_spoilt or is_broken(self.device):
            raise SystemExit(BROKEN)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return row

    def finish(self) -> None:
        """Record that every row had its turn, and whether none was left out for want of time."""
        self.is_complete = not self.left_out
        self.save()

    def save(self) -> None:
        """Write the file at once or not at all."""
        temporary = self.path.with_suffix(".tmp")
        content = {"settings": self.settings, "is_complete": self.is_complete, "rows": self.rows}
        temporary.write_text(json.dumps(content, indent=1) + "\n")
        os.replace(temporary, self.path)
