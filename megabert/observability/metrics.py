"""Where a run's metrics go: ``metrics.jsonl``, TensorBoard and other trackers, all by global step."""

import json
import math
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from textwrap import indent
from typing import Any

from megabert.foundation.errors import CheckpointError, MegabertError
from megabert.foundation.files import atomic_write, open_in_place, read_small
from megabert.foundation.json_files import parse_json
from megabert.observability.follower import COUNTERS, TrackerProcess, Value, finish, scalar_leaves, shown_name
from megabert.observability.logs import logger
from megabert.settings.config.loading import to_dict, to_yaml
from megabert.settings.config.run import LoggingConfig

Row = dict[str, int | float | dict[str, float] | None]
MAX_BYTES = 2 << 30
"""Most bytes of a file of metrics: two million rows."""
HISTOGRAMS = "train/trust_ratio/"
"""Beginning of the tags whose values are lists, of which a row has a summary; None if the list is empty."""


class MetricWriter:
    """Writes a row of metrics per step to ``metrics.jsonl``, and shows it in TensorBoard and other trackers.

    A resumed run drops the rows after its checkpoint, so that every step is there once. A full disk does not end a run:
    rows wait in memory until there is space again, and TensorBoard lacks the points in between.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        resumed_step: int,
        config: object = None,
        scores: Sequence[str] = (),
        logging: LoggingConfig | None = None,
    ) -> None:
        """Open the file and the trackers; rows and points after ``resumed_step`` are dropped.

        Args:
            run_dir: Run folder, or the folder of a seed.
            resumed_step: The step that the run continues after; 0 for a new one, and all rows are dropped.
            config: The configuration, a pydantic dataclass: TensorBoard shows it as text and as hyper-parameters.
            scores: Tags whose last values stand next to the hyper-parameters.
            logging: Names the trackers in addition to TensorBoard; None for none.
        """
        self._path, self._events = run_dir / "metrics.jsonl", run_dir / "tb"
        _drop_rows_after(self._path, resumed_step or -1)  # scores before step 1 are made again as well
        self._file = open_in_place(self._path, os.O_WRONLY | os.O_APPEND)
        self._waiting = b""
        self._is_disk_full = False
        self._tensorboard = TensorBoard(self._events)
        self._try(lambda: self._tensorboard.begin(resumed_step, config, scores))
        # They read the rows in the file.
        self._trackers = [TrackerProcess(name, run_dir, logging) for name in logging.trackers] if logging else []

    def note(self, title: str, lines: Sequence[str], step: int) -> None:
        """Show some lines of text in TensorBoard."""
        self._try(lambda: self._tensorboard.note(title, lines, step))

    def write(self, step: int, values: Mapping[str, Value]) -> None:
        """Write one row. In TensorBoard numbers become scalars, and lists histograms."""
        row: dict[str, Any] = {"step": step}
        for tag, value in values.items():
            if isinstance(value, list):  # the file gets three numbers, TensorBoard the whole histogram
                row[tag] = {"min": min(value), "mean": sum(value) / len(value), "max": max(value)} if value else None
            else:
                row[tag] = value
        self._waiting += json.dumps(row).encode("ascii") + b"\n"
        has_space = self._try(self._write_rows)
        if self._try(lambda: self._tensorboard.write(step, values)) and has_space:
            self._is_disk_full = False
        for tracker in self._trackers:
            tracker.check()

    def flush(self) -> None:
        """Sync every row to the disk. This is called before a checkpoint is written, which may not be ahead of them."""
        self._try(self._write_rows)
        self._try(lambda: os.fsync(self._file))
        self._try(self._tensorboard.flush)

    def close(self) -> None:
        """Flush and close the file and the trackers."""
        self.flush()
        os.close(self._file)
        finish(self._trackers)
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
    content = read_small(path, most=MAX_BYTES)
    if content.startswith(kept):  # as a rule; cutting needs no space on the disk
        file = open_in_place(path, os.O_WRONLY)
        try:
            os.ftruncate(file, len(kept))
            os.fsync(file)
        finally:
            os.close(file)
    else:
        atomic_write(path, kept)


class TensorBoard:
    """Writes event files. After an error the next point opens another file; the points in between are missing."""

    def __init__(self, folder: Path) -> None:
        """Name the folder; ``begin`` opens a file in it."""
        self._folder = folder
        self._writer: Any = None

    def begin(self, resumed_step: int, config: object, scores: Sequence[str]) -> None:
        """Drop the points after a step that earlier sessions wrote, and show the configuration.

        Args:
            resumed_step: The step that the run continues after; 0 for a new one.
            config: The configuration, a pydantic dataclass, or None.
            scores: Tags whose last values stand next to the hyper-parameters.
        """
        self._open(purge_step=resumed_step + 1 if resumed_step else 0)  # a new start makes step 0 again as well
        if config is None:
            return
        self._writer.add_text("config", indent(to_yaml(config), "    "), resumed_step)
        if not resumed_step:  # once: a second session of the same run would be another row of the table
            from torch.utils.tensorboard.summary import hparams

            values = scalar_leaves(to_dict(config))
            # The scores are named, not given: TensorBoard takes the last point of each tag.
            for summary in hparams(values, dict.fromkeys(scores, 0.0)):
                self._writer.file_writer.add_summary(summary)

    def note(self, title: str, lines: Sequence[str], step: int) -> None:
        """Show some lines under Text."""
        if self._writer is not None and lines:
            self._writer.add_text(title, "\n\n".join(lines), step)

    def write(self, step: int, values: Mapping[str, Value]) -> None:
        """Write numbers as scalars, and lists as histograms."""
        if self._writer is None:
            self._open()
        try:
            for name, value in values.items():
                if isinstance(value, list):
                    if value:
                        import numpy as np

                        self._writer.add_histogram(shown_name(name), np.asarray(value), step)
                elif not isinstance(value, str) and math.isfinite(value):
                    self._writer.add_scalar(shown_name(name), value, step)
        except OSError:  # the writer's own thread has ended: the next point opens another writer
            broken, self._writer = self._writer, None
            with suppress(OSError):
                broken.close()
            raise

    def flush(self) -> None:
        """Write the points that wait in memory."""
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """Flush, and close the file."""
        if self._writer is not None:
            self._writer.close()

    def _open(self, purge_step: int | None = None) -> None:
        """Open a file; points from ``purge_step`` on are dropped."""
        # Imported here: TensorBoard takes a second, which --help should not pay.
        from torch.utils.tensorboard import SummaryWriter

        if getattr(threading.excepthook, "func", None) is not _without_tensorboard:
            threading.excepthook = partial(_without_tensorboard, threading.excepthook)
        self._writer = SummaryWriter(str(self._folder), purge_step=purge_step, flush_secs=30)


def _without_tensorboard(show: Callable[[Any], object], failure: threading.ExceptHookArgs) -> None:
    """Show what ended a thread, unless it was TensorBoard's on a full disk: our next call gets that error as well."""
    module = type(failure.thread).__module__
    if not (module.startswith("tensorboard.") and issubclass(failure.exc_type, OSError)):
        show(failure)
