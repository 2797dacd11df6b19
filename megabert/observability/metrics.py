"""Where a run's metrics go: ``metrics.jsonl`` and TensorBoard, both by global step."""

import json
import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import indent
from typing import Any

from megabert.config.loading import to_dict, to_yaml
from megabert.errors import CheckpointError, MegabertError
from megabert.files import atomic_write, open_in_place, read_small
from megabert.json_files import parse_json
from megabert.observability.logs import logger
from megabert.path_arguments import takes_paths

Histogram = list[float]
Value = float | int | Histogram
Row = dict[str, int | float | dict[str, float] | None]
MAX_BYTES = 2 << 30
"""Most bytes of a file of metrics: two million rows."""
COUNTERS = ("step", "phase", "phase_step")
HISTOGRAMS = "train/trust_ratio/"
"""Beginning of the tags whose values are lists, of which a row has a summary; None if the list is empty."""


class MetricWriter:
    """Writes a row of metrics per step to ``metrics.jsonl``, and the same tags to TensorBoard.

    A resumed run drops the rows after its checkpoint, so that every step is there once. A full disk does not end a run:
    rows wait in memory until there is space again, and TensorBoard lacks the points in between.
    """

    def __init__(self, run_dir: Path, *, resumed_step: int, config: object = None, scores: Sequence[str] = ()) -> None:
        """Open both files; rows and points after ``resumed_step`` are dropped.

        Args:
            run_dir: Run folder, or the folder of a seed.
            resumed_step: The step that the run continues after; 0 for a new one.
            config: The configuration, a pydantic dataclass: TensorBoard shows it as text and as hyper-parameters.
            scores: Tags whose last values stand next to the hyper-parameters.
        """
        self._path, self._events = run_dir / "metrics.jsonl", run_dir / "tb"
        _drop_rows_after(self._path, resumed_step)
        self._file = open_in_place(self._path, os.O_WRONLY | os.O_APPEND)
        self._waiting = b""
        self._is_disk_full = False
        self._tensorboard: Any = None
        self._try(lambda: self._open_tensorboard(purge_step=resumed_step + 1))
        if config is not None and self._tensorboard is not None:
            self._try(lambda: self._write_config(config, scores, resumed_step))

    def note(self, title: str, lines: Sequence[str], step: int) -> None:
        """Show some lines of text in TensorBoard."""
        if self._tensorboard is not None and lines:
            self._try(lambda: self._tensorboard.add_text(title, "\n\n".join(lines), step))

    def write(self, step: int, values: Mapping[str, Value]) -> None:
        """Write one row. In TensorBoard numbers become scalars, and lists histograms."""
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
        """Do some work that a full disk may prevent, and warn the first time; return whether it was done."""
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

    def _write_config(self, config: object, scores: Sequence[str], step: int) -> None:
        """Show the configuration in TensorBoard, as text and as hyper-parameters."""
        from torch.utils.tensorboard.summary import hparams

        self._tensorboard.add_text("config", indent(to_yaml(config), "    "), step)
        if not step:  # once: a second session of the same run would be another row of the table
            values = {
                name: value if isinstance(value, bool | int | float) else str(value)
                for name, value in leaves(to_dict(config))
            }
            # The scores are named, not given: TensorBoard takes the last point of each tag.
            for summary in hparams(values, dict.fromkeys(scores, 0.0)):
                self._tensorboard.file_writer.add_summary(summary)

    def _write_points(self, step: int, values: Mapping[str, Value]) -> None:
        """Write the values of a step to TensorBoard."""
        if self._tensorboard is None:
            self._open_tensorboard()
        try:
            for name, value in values.items():
                tag = f"progress/{name}" if name in COUNTERS else name  # the part before the slash is the group
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
        """Open TensorBoard's file; points after ``purge_step`` are dropped."""
        # Imported here: TensorBoard takes a second, which --help should not pay.
        from torch.utils.tensorboard import SummaryWriter

        if threading.excepthook is not _without_tensorboard:
            threading.excepthook = _without_tensorboard
        self._tensorboard = SummaryWriter(str(self._events), purge_step=purge_step, flush_secs=30)


def leaves(fields: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the fields of nested mappings by their paths; the items of a list are fields by their number."""
    for name, value in fields.items():
        inner = {str(i): item for i, item in enumerate(value)} if isinstance(value, list) else value
        if isinstance(inner, Mapping):
            yield from leaves(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", inner


def _without_tensorboard(failure: threading.ExceptHookArgs) -> None:
    """Show what ended a thread, unless it was TensorBoard's on a full disk: our next call gets that error as well."""
    module = type(failure.thread).__module__
    if not (module.startswith("tensorboard.") and issubclass(failure.exc_type, OSError)):
        threading.__excepthook__(failure)


@takes_paths
def read_metrics(run_dir: Path) -> list[dict[str, Any]]:
    """Return the rows of a run's ``metrics.jsonl``; lines that were cut off or damaged are left out, with a warning.

    Raises:
        CheckpointError: No line of the file is a row of metrics.
    """
    path = run_dir / "metrics.jsonl"
    return [row for _, row in _read_rows(path)] if path.exists() else []


def _read_rows(path: Path) -> list[tuple[bytes, Row]]:
    """Return each whole line of a file of metrics, with its values."""
    *lines, last = read_small(path, most=MAX_BYTES).split(b"\n")
    rows, damaged = [], []
    for number, line in enumerate([*lines, last] if last else lines, 1):
        try:
            row = parse_json(line, Row, where="", remedy="")
            if not _is_sound(row):
                raise CheckpointError("a row has a step, and numbers")
            rows.append((line, row))
        except MegabertError:
            damaged.append(number)
    # The run that writes the file may be in the middle of its last line.
    if damaged and damaged[-1] == len(lines) + 1 and last.startswith(b"{") and not last.endswith(b"}"):
        damaged.pop()
    if damaged and not rows:
        raise CheckpointError(
            f"{path}: line {damaged[0]} is no row of metrics, nor is any other: the file is damaged or another "
            "program's. Copy it again, or name another run."
        )
    if damaged:
        logger.warning("%s: %d damaged lines are left out, the first is line %d", path, len(damaged), damaged[0])
    return rows


def _is_sound(row: Row) -> bool:
    """Whether a row has a step, and numbers under all tags except histograms."""
    return "step" in row and all(
        isinstance(value, int) if tag in COUNTERS else isinstance(value, int | float) or tag.startswith(HISTOGRAMS)
        for tag, value in row.items()
    )


def _drop_rows_after(path: Path, step: int) -> None:
    """Cut the file back to the whole rows up to a step: the steps after it are made, and written, again."""
    if not path.exists():
        return
    # A kill may have cut off the last row; the next one would be glued to its beginning.
    kept = b"".join(line + b"\n" for line, row in _read_rows(path) if row["step"] <= step)  # type: ignore[operator]
    if kept != read_small(path, most=MAX_BYTES):
        atomic_write(path, kept)
