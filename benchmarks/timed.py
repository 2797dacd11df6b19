"""``python -m benchmarks.timed``: megabert whose rows of metrics also have the CPU seconds of training.

The clock starts with the first row, after the imports and the first step, and does not count validations. A row of
training is written just before a validation of the same step, so that the time up to a validation's row is its own.
"""

import sys
import time
from collections.abc import Mapping
from typing import Any

from megabert.cli import main
from megabert.observability.metrics import MetricWriter

TAG = "perf/training_cpu_s"


def install() -> None:
    """Wrap the writing of rows."""
    original = MetricWriter.write
    last: float | None = None
    training_s = 0.0

    def with_cpu_s(self: MetricWriter, step: int, values: Mapping[str, Any]) -> None:
        nonlocal last, training_s
        now = time.process_time()
        if last is not None and not any(tag.startswith("eval/") for tag in values):
            training_s += now - last
        original(self, step, {**values, TAG: round(training_s, 2)})
        last = time.process_time()

    MetricWriter.write = with_cpu_s  # type: ignore[method-assign]


if __name__ == "__main__":
    install()
    sys.exit(main())
