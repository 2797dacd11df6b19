"""Where a run's metrics go: ``metrics.jsonl`` and TensorBoard, both by global step."""

import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from megabert.observability.logs import logger
from megabert.schema import atomic_write

Histogram = list[float]
Value = float | int | str | Histogram


class MetricWriter:
    """Writes a row of metrics per step to ``metrics.jsonl``, and the same tags to TensorBoard.

    A resumed run drops the rows after its checkpoint, so that every step is there once. A full disk does not end a run:
    rows wait in memory until there is space again, and TensorBoard lacks the points in between.
    """

    def __init__(self, run_dir: Path, *, resumed_step: int) -> None:
        """Open both files; rows and points after ``resumed_step`` are dropped."""
        self._path, self._events = run_dir / "metrics.jsonl", run_dir / "tb"
        _drop_rows_after(self._path, resumed_step)
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._waiting = b""
        self._is_disk_full = False
        self._tensorboard: Any = None
        self._try(lambda: self._open_tensorboard(purge_step=resumed_step + 1))

    def write(self, step: int, values: Mapping[str, Value]) -> None:
        """Write one row. In TensorBoard numbers become scalars, lists histograms; text is in the row only."""
        row: dict[str, Any] = {"step": step}
        for tag, value in values.items():
            if isinstance(value, list):  # the file gets three numbers, TensorBoard the whole histogram
                row[tag] = {"min": min(value), "mean": sum(value) / len(value), "max": max(value)} if value else None
            else:
                row[tag] = value
        self._waiting += json.dumps(row).encode("ascii") + b"\n"
        if self._try(self._write_rows) and self._try(lambda: self._write_points(step, values)):
            self._is_disk_full = False

    def flush(self) -> None:
        """Sync every row to the disk. This is called before a checkpoint is written, which may not be ahead of them."""
        self._try(self._write_rows)
        self._try(lambda: os.fsync(self._file))
        if self._tensorboard is not None:
            self._try(self._tensorboard.flush)

    def close(self) -> None:
        """Flush and close both files."""
        self.flush()
        os.close(self._file)
        if self._tensorboard is not None:
            self._try(self._tensorboard.close)
        if self._waiting:
            logger.warning("%s: the last %d rows were not written", self._path, self._waiting.count(b"\n"))

    def _try(self, work: Callable[[], object]) -> bool:
        """Try what a full disk may prevent, and warn the first time; return whether it was done."""
        try:
            work()
        except OSError as error:
            if not self._is_disk_full:
                logger.warning("%s and %s cannot be written: %s", self._path, self._events, error.strerror or error)
            self._is_disk_full = True
            return False
        return True

    def _write_rows(self) -> None:
        while self._waiting:  # a disk that fills up takes a part of a row; the rest follows when there is space
            self._waiting = self._waiting[os.write(self._file, self._waiting) :]

    def _write_points(self, step: int, values: Mapping[str, Value]) -> None:
        if self._tensorboard is None:
            self._open_tensorboard()
        try:
            for tag, value in values.items():
                if isinstance(value, list):
                    if value:
                        import numpy as np

                        self._tensorboard.add_histogram(tag, np.asarray(value), step)
                elif not isinstance(value, str) and math.isfinite(value):
                    self._tensorboard.add_scalar(tag, value, step)
        except OSError:  # the writer's own thread has ended: the next point opens another writer
            broken, self._tensorboard = self._tensorboard, None
            self._try(broken.close)
            raise

    def _open_tensorboard(self, purge_step: int | None = None) -> None:
        # Imported here: TensorBoard takes a second, which --help should not pay.
        from torch.utils.tensorboard import SummaryWriter

        self._tensorboard = SummaryWriter(str(self._events), purge_step=purge_step, flush_secs=30)


def read_metrics(run_dir: Path) -> list[dict[str, Any]]:
    """Return the rows of a run's ``metrics.jsonl``, without lines that were cut off."""
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
    # The steps after the checkpoint are made again, and write their rows again.
    known = read_metrics(path.parent)
    rows = [row for row in known if row["step"] <= step]
    if len(rows) == len(known):
        return
    atomic_write(path, "".join(json.dumps(row) + "\n" for row in rows))
