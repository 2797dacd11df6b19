"""Rates of this machine, measured by a small build, for an estimate of a large one."""

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.config.build import BuildConfig
from data_prep.execution.executors import Executor
from data_prep.execution.work_units import Unit
from data_prep.pipeline import build_shards
from data_prep.planning.estimate import RATES
from megabert.settings.config import loading


def measured_rates(config: BuildConfig) -> dict[str, float]:
    """Measure the `RATES` of an estimate by a build of three megabytes of made-up words, which takes half a minute."""
    rng, words = np.random.default_rng(0), [f"w{number:x}".translate(_LETTERS) for number in range(20_000)]
    ranks = np.minimum(rng.zipf(1.2, 700_000), len(words)) - 1
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "words.txt"
        sentences = [" ".join(words[int(i)] for i in part) + "." for part in np.array_split(ranks, 35_000)]
        parts = [" ".join(sentences[first : first + 20]) for first in range(0, len(sentences), 20)]
        path.write_text("\n\n".join(parts), encoding="utf-8")
        clock = _Clock()
        changes = {"vocab_size": 4096, "lengths": config.lengths[:1], "dupe_factor": 2}
        small = loading.merge_layers(BuildConfig, {"sources": [{"input": str(path)}], **changes})
        for number in range(2):  # the first one compiles
            clock.seconds.clear()
            build_shards(small, Path(folder) / str(number), clock)
        megabytes = path.stat().st_size / 1e6
    passes = {"instances": 2 + small.validation_share}
    return {step: megabytes * passes.get(step, 1) / seconds for step, seconds in clock.seconds.items() if step in RATES}


_LETTERS = str.maketrans("0123456789", "ghijklmnop")


class _Clock(Executor):
    """Does units in this process and adds up the CPU seconds of each step."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()

    def run(self, function: Callable[[Any], Any], tasks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """Yield results, and the time that they took to ``seconds``."""
        for index, task in enumerate(tasks):
            start = time.process_time()
            result = function(task)
            if isinstance(task, Unit):
                self.seconds[task.step.split("-")[0]] += time.process_time() - start  # type: ignore[assignment]
            yield index, result
