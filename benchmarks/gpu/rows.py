"""Rows of a benchmark part: each saved once measured, skipped when resumed, measured again where it failed."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

Row = dict[str, Any]


class Rows:
    """The rows of one part, in ``FOLDER/PART.json``."""

    def __init__(self, path: Path, settings: dict[str, Any], *, seconds: float) -> None:
        """Read what an earlier run left, if its settings were the same.

        Args:
            path: The file.
            settings: What a row depends on: device, versions, revision, size.
            seconds: After this long no further row is started.
        """
        self.path = path
        self.settings = settings
        self.deadline = time.monotonic() + seconds
        self.rows: dict[str, Row] = {}
        self.is_complete = True
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
        """
        if name in self.rows and "error" not in self.rows[name]:
            return self.rows[name]
        if self.remaining_s() <= 0:
            self.is_complete = False
            self.save()
            return None
        started = time.monotonic()
        try:
            row = function()
        except Exception as error:  # one failed row must not cost the others
            row = {
                "not_run"
                if is_peer
                else "error": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:300]
            }
        row["measured_in_s"] = round(time.monotonic() - started, 2)
        self.rows[name] = row
        self.save()
        print(f"{self.path.stem} | {name} | " + json.dumps(row), flush=True)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return row

    def save(self) -> None:
        """Write the file at once or not at all."""
        temporary = self.path.with_suffix(".tmp")
        content = {"settings": self.settings, "is_complete": self.is_complete, "rows": self.rows}
        temporary.write_text(json.dumps(content, indent=1) + "\n")
        os.replace(temporary, self.path)
