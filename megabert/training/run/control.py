"""What the world outside has to do with a running training: it looks on, asks for a stop, or ends a hang."""

from dataclasses import dataclass

from megabert.training.recovery.stop_signals import StopSignals
from megabert.training.recovery.watchdog import Watchdog
from megabert.training.run.status import RunStatus


@dataclass(frozen=True, kw_only=True)
class RunControl:
    """The three parts that everything long-running needs; they go together from the start of a run to its end."""

    status: RunStatus
    """Records in ``status.json`` how the run is doing."""
    stop: StopSignals
    """Tells whether a signal has asked this rank to stop."""
    watchdog: Watchdog
    """Ends this rank where something takes longer than its limit."""
