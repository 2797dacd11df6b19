"""Functions of a user's own that a training calls on rank 0, between two steps."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from megabert.foundation.errors import MegabertError
from megabert.observability.logs import logger
from megabert.settings.config.run import WatchdogConfig
from megabert.training.recovery.stop_signals import StopSignals

Event = Literal["on_step", "on_validation", "on_checkpoint"]
OnMetrics = Callable[[int, Mapping[str, Any]], object]
OnCheckpoint = Callable[[int, Path], object]


@dataclass(kw_only=True)
class Callbacks:
    """The functions, and the first error of one of them, after which none is called again."""

    on_step: OnMetrics | None = None
    """Gets step and row of each logged step, as ``metrics.jsonl`` has it."""
    on_validation: OnMetrics | None = None
    """Gets step and scores of each validation."""
    on_checkpoint: OnCheckpoint | None = None
    """Gets step and folder of each checkpoint, once it is whole on the disk."""
    error: MegabertError | None = None

    def call(self, event: Event, step: int, value: Any, stop: StopSignals) -> None:
        """Call a function; if it fails, the run is asked to stop, which saves it on all ranks."""
        function: Callable[[int, Any], object] | None = getattr(self, event)
        if function is None or self.error is not None:
            return
        try:
            function(step, value)
        except Exception as error:
            logger.debug("%s failed", event, exc_info=True)
            self.error = MegabertError(
                f"{event} of step {step}: {type(error).__name__}: {error}. The run is saved: correct the function, and "
                "the same call continues it."
            )
            self.error.__cause__ = error
            stop.received = stop.received or f"an error of {event}"

    def extend(self, limits: WatchdogConfig) -> WatchdogConfig:
        """Return the time limits of a run that calls the functions: a step may take as long as a checkpoint.

        Rank 0 is in a step when it calls one, which may upload for minutes, and the other ranks wait in the next step.
        """
        has_functions = any(function is not None for function in (self.on_step, self.on_validation, self.on_checkpoint))
        return replace(limits, min_step_s=max(limits.min_step_s, limits.other_s)) if has_functions else limits

    def require_sound(self) -> None:
        """Raise the error of a function, if there was one."""
        if self.error is not None:
            raise self.error
