"""Profiles of chosen steps: a torch.profiler trace for ui.perfetto.dev, and a table of what took longest."""

from pathlib import Path
from typing import Any

import torch

from megabert.foundation.files import atomic_write
from megabert.observability.logs import logger
from megabert.settings.config.run import LoggingConfig

TABLE_ROWS = 40
"""Operations that the table lists."""


class StepProfiler:
    """Records the steps that ``logging.profile_steps`` names, on rank 0 or on all ranks; without it, nothing."""

    def __init__(self, config: LoggingConfig, run_dir: Path, rank: int) -> None:
        """Read which steps are to be recorded."""
        self._folder, self._rank = run_dir / "profile", rank
        self._is_chosen = rank == 0 or config.profile_ranks == "all"
        self._steps = _steps(config.profile_steps) if config.profile_steps else range(0)
        self._profile: Any = None
        self._first = 0

    def before(self, step: int) -> None:
        """Start recording before the first chosen step, so that waiting for its data is included."""
        if self._is_chosen and self._profile is None and step in self._steps:
            activities = [torch.profiler.ProfilerActivity.CPU]
            if torch.cuda.is_available():
                activities.append(torch.profiler.ProfilerActivity.CUDA)
            self._first = step
            self._profile = torch.profiler.profile(activities=activities)
            self._profile.start()

    def ends_with(self, step: int) -> bool:
        """Return whether this is the last chosen step, after which `close` writes for longer than a step may take."""
        return step in self._steps[-1:]

    def close(self, step: int) -> None:
        """Stop, and write the recorded steps, if there are any; a run may end before the last chosen step."""
        if self._profile is None:
            return
        profile, self._profile = self._profile, None
        profile.stop()
        name = f"rank_{self._rank:03d}_steps_{self._first}-{step}"
        trace, table = self._folder / f"{name}.json.gz", self._folder / f"{name}.txt"
        order = "self_cuda_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            trace.unlink(missing_ok=True)  # torch opens the file by itself, and would write through a link
            profile.export_chrome_trace(str(trace))
            atomic_write(table, profile.key_averages().table(sort_by=order, row_limit=TABLE_ROWS))
        except OSError as error:  # a full disk does not end a run
            logger.warning("%s: the profile was not written: %s", self._folder, error.strerror or error)
            return
        logger.info("profile of steps %d to %d: %s and %s", self._first, step, trace, table)


def _steps(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)
