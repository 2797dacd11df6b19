"""The libraries of the trackers: trackio and wandb. Both are optional, and imported in the tracker's process alone."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from megabert.foundation.files import remove_path, under_way, write_durably

LOOK_S = 10
"""Seconds between two looks whether the disk is full."""
BUFFER_BYTES = 64 << 10
"""More than wandb's service writes at once."""


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """The run whose rows are sent."""

    name: str
    """Name of the run folder, for people."""
    run_id: str
    """Name that is the same for all sessions of the run."""
    project: str
    is_offline: bool
    """Whether nothing is sent over a network."""
    folder: Path
    config: dict[str, Any]
    """The configuration, by the paths of its fields."""


class Store(Protocol):
    """Where a tracker keeps rows. It is given all rows of ``metrics.jsonl``, from the first one, in every session."""

    def log(self, step: int, values: dict[str, float]) -> None:
        """Take the values of a step; steps never decrease, and one may come twice, with other names."""

    def finish(self) -> None:
        """Write everything, and end the session."""


class Trackio(Store):
    """trackio's local database (``TRACKIO_DIR``), or a Space or server of the user's."""

    def __init__(self, run: TrackedRun) -> None:
        """Open the run. Locally its rows are written anew; elsewhere, those after the last step are added."""
        if run.is_offline:  # these would send the rows elsewhere
            for variable in ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"):
                os.environ.pop(variable, None)
        elif not (os.environ.get("TRACKIO_SPACE_ID") or os.environ.get("TRACKIO_SERVER_URL")):
            raise ValueError("online needs TRACKIO_SPACE_ID (OWNER/NAME) or TRACKIO_SERVER_URL in the environment")
        trackio = import_module("trackio")
        if run.is_offline:
            self._forget(trackio, run)
        self._run = trackio.init(
            project=run.project,
            name=f"{run.name}-{run.run_id[:6]}",
            config=run.config,
            resume="never" if run.is_offline else "allow",
            embed=False,
            auto_log_cpu=False,
            auto_log_gpu=False,
        )
        # A new run begins at step 0; a resumed one after its last step.
        self._first = 0 if run.is_offline else self._run._next_step
        if run.is_offline:
            self._run.id = run.run_id

    def log(self, step: int, values: dict[str, float]) -> None:
        """Queue a row; a thread of trackio's writes it."""
        if step >= self._first:
            self._run.log(values, step=step)

    def finish(self) -> None:
        """Wait for that thread."""
        self._run.finish()

    def _forget(self, trackio: Any, run: TrackedRun) -> None:
        """Remove what earlier sessions wrote: rows after the checkpoint would be there twice, others be missing."""
        try:
            for earlier in trackio.Api().runs(run.project):
                if earlier.id == run.run_id:
                    earlier.delete()
        except ValueError:  # the project does not exist yet
            pass


class Wandb(Store):
    """wandb's transaction log below ``RUN/wandb``, or its server."""

    def __init__(self, run: TrackedRun) -> None:
        """Open a session. Offline it holds all rows of the run; online, only rows that the server lacks."""
        wandb = import_module("wandb")
        self._earlier = list((run.folder / "wandb").glob(f"offline-run-*-{run.run_id}")) if run.is_offline else []
        self._run = wandb.init(
            project=run.project,
            id=run.run_id,
            name=run.name,
            dir=str(run.folder),
            config=run.config,
            mode="offline" if run.is_offline else "online",
            resume=None if run.is_offline else "allow",
            settings=wandb.Settings(
                console="off", silent=True, save_code=False, disable_git=True, x_disable_stats=True, x_disable_meta=True
            ),
        )
        self._first = self._run.step
        self._folder, self._looked_s = run.folder / "wandb", time.monotonic()

    def log(self, step: int, values: dict[str, float]) -> None:
        """Hand a row to wandb's service."""
        if time.monotonic() > self._looked_s + LOOK_S:
            self._look_for_space()
        if step >= self._first:
            self._run.log(values, step=step)

    def finish(self) -> None:
        """Wait until the rows are written, and remove the sessions before this one, whose rows it holds as well."""
        self._run.finish()
        self._look_for_space()
        for folder in self._earlier:
            remove_path(folder)

    def _look_for_space(self) -> None:
        """Write as much as wandb does at once: on a full disk its service drops rows and reports nothing.

        Raises:
            DataError: The disk is full.
        """
        self._looked_s = time.monotonic()
        with under_way(self._folder / "space") as path:
            write_durably(path, bytes(BUFFER_BYTES))


STORES: dict[str, Callable[[TrackedRun], Store]] = {"trackio": Trackio, "wandb": Wandb}
