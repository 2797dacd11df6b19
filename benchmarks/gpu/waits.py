"""``megabert`` as a user starts it, with the host's waits for the GPU counted in three steps of training.

    python -m benchmarks.gpu.waits COUNTS.json pretrain ...

``torch.cuda.set_sync_debug_mode`` reports copies and numbers that the host waits for and of waits for a stream. It
does not know of events, on which `HostCopy` waits, nor of ``torch.cuda.synchronize``: those calls are counted. A step
of one rank should wait once, for the copy of its losses and its norm.
"""

import contextlib
import json
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from functools import wraps
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from megabert.cli import main
from megabert.training.trainer import Trainer

COUNTED = range(11, 14)
"""Steps by number: kernels are compiled by then, and tables cached."""
SYNCHRONIZES = "synchronizing CUDA operation"
EVENT, DEVICE = "event", "device"


@contextlib.contextmanager
def counted_waits(counts: Counter[str]) -> Iterator[None]:
    """Add to ``counts`` each wait of the host for the GPU: for an event, the device, or by the line that caused it."""

    def counted(name: str, function: Any) -> Any:
        @wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            counts[name] += 1
            return function(*arguments, **options)

        return call

    for_event = mock.patch.object(torch.cuda.Event, "synchronize", counted(EVENT, torch.cuda.Event.synchronize))
    for_device = mock.patch.object(torch.cuda, "synchronize", counted(DEVICE, torch.cuda.synchronize))
    with for_event, for_device, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")
    for warning in caught:
        if SYNCHRONIZES in str(warning.message):
            counts[f"{Path(warning.filename).name}:{warning.lineno}"] += 1


def count_in_steps(output: Path) -> None:
    """Let the trainer count in its steps ``COUNTED``, and write the waits of all of them together."""
    step, counts = Trainer._step, Counter[str]()

    @wraps(step)
    def counted_step(trainer: Trainer, *arguments: Any) -> Any:
        number = trainer.state.step + 1
        if number not in COUNTED:
            return step(trainer, *arguments)
        with counted_waits(counts):
            result = step(trainer, *arguments)
        if number == COUNTED[-1]:
            output.write_text(json.dumps({"steps": len(COUNTED), "waits": counts}) + "\n")
        return result

    Trainer._step = counted_step  # type: ignore[method-assign]


if __name__ == "__main__":
    if torch.cuda.is_available():
        count_in_steps(Path(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))
