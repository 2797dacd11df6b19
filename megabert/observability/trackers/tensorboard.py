"""TensorBoard's event files: scalars, histograms, the configuration as text and as hyper-parameters."""

import math
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from textwrap import indent
from typing import Any

from megabert.observability.trackers.rows import Value, scalar_leaves, shown_name
from megabert.settings.config.loading import to_dict, to_yaml


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

        if threading.excepthook is not _without_tensorboard:
            threading.excepthook = _without_tensorboard
        self._writer = SummaryWriter(str(self._folder), purge_step=purge_step, flush_secs=30)


def _without_tensorboard(failure: threading.ExceptHookArgs) -> None:
    """Show what ended a thread, unless it was TensorBoard's on a full disk: our next call gets that error as well."""
    module = type(failure.thread).__module__
    if not (module.startswith("tensorboard.") and issubclass(failure.exc_type, OSError)):
        threading.__excepthook__(failure)
