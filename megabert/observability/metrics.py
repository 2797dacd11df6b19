"""Metric sinks of a run: ``metrics.jsonl`` and TensorBoard, both over global steps."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from megabert.errors import CheckpointError

Histogram = list[float]
Value = float | int | str | Histogram


class MetricWriter:
    """Writes one row of metrics a step to ``metrics.jsonl`` and the same tags to TensorBoard.

    A resumed run drops the rows after the checkpoint that it continues from, so every step stands once.
    """

    def __init__(self, run_dir: Path, *, resumed_step: int) -> None:
        """Open both sinks; rows and points above ``resumed_step`` are dropped."""
        # Imported here: TensorBoard takes a second, which --help should not pay.
        from torch.utils.tensorboard import SummaryWriter

        self._path = run_dir / "metrics.jsonl"
        _drop_rows_after(self._path, resumed_step)
        self._file = self._path.open("a", encoding="utf-8")
        self._tensorboard = SummaryWriter(str(run_dir / "tb"), purge_step=resumed_step + 1, flush_secs=30)

    def write(self, step: int, values: Mapping[str, Value]) -> None:
        """Write one row: numbers become TensorBoard scalars, lists of numbers histograms, text stays in the row."""
        row: dict[str, Any] = {"step": step}
        for tag, value in values.items():
            if isinstance(value, list):
                row[tag] = {"min": min(value), "mean": sum(value) / len(value), "max": max(value)} if value else None
                if value:
                    import numpy as np

                    self._tensorboard.add_histogram(tag, np.asarray(value), step)
            else:
                row[tag] = value
                if not isinstance(value, str) and math.isfinite(value):
                    self._tensorboard.add_scalar(tag, value, step)
        try:
            self._file.write(json.dumps(row) + "\n")
            self._file.flush()
        except OSError as error:
            raise CheckpointError(
                f"{self._path}: cannot be written ({error.strerror}). Free some space and start the same command again."
            ) from error

    def flush(self) -> None:
        """Bring every row to the disk; called before a checkpoint names its step."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._tensorboard.flush()

    def close(self) -> None:
        """Flush and close both sinks."""
        self.flush()
        self._file.close()
        self._tensorboard.close()


def read_metrics(run_dir: Path) -> list[dict[str, Any]]:
    """Return the rows of a run's ``metrics.jsonl``, a cut last line left out."""
    path = run_dir / "metrics.jsonl"
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows


def _drop_rows_after(path: Path, step: int) -> None:
    if not path.exists():
        return
    rows = [row for row in read_metrics(path.parent) if row["step"] <= step]
    temporary = path.with_suffix(".tmp")
    temporary.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    temporary.replace(path)
