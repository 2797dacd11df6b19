"""``megabert-data bench``."""

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from data_prep.checks.verify import verify
from data_prep.commands.build import FIELDS
from data_prep.commands.options import add_config_argument, add_source_arguments, make_config
from data_prep.execution.executors import SerialExecutor
from data_prep.extract import find_files
from data_prep.pipeline import build
from megabert.errors import DataError


class TimedExecutor(SerialExecutor):
    """Everything in this process, with the CPU time of each stage."""

    def __init__(self) -> None:
        """Start at zero."""
        self.seconds: dict[str, float] = {}

    def run(self, function: Callable[[Any], Any], tasks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """Yield results in order."""
        for index, task in enumerate(tasks):
            stage = getattr(task, "stage", function.__name__.strip("_"))
            start = time.process_time()
            result = function(task)
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.process_time() - start
            yield index, result


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the verb: those that say what to build."""
    add_source_arguments(parser)
    for name, options in FIELDS.items():
        add_config_argument(parser, name, **options)


def run(arguments: argparse.Namespace) -> int:
    """Build in a temporary folder on one core, verify, print a line a stage."""
    config = make_config(arguments, list(FIELDS))
    executor = TimedExecutor()
    with tempfile.TemporaryDirectory(prefix="megabert-bench-") as folder:
        start, wall = time.process_time(), time.monotonic()
        built = build(config, Path(folder) / "out", executor)
        for length in config.lengths:
            verdict = verify(built.folder / "instances" / str(length), executor)
            if verdict.problems:
                raise DataError(f"the shards are not sound: {verdict.problems[0]}")
        seconds, wall = time.process_time() - start, time.monotonic() - wall
        shard_bytes = sum(path.stat().st_size for path in built.folder.glob("instances/*/*.arrow"))
    executor.seconds["rest (planning, manifests)"] = seconds - sum(executor.seconds.values())
    megabytes = sum(file.bytes for file in find_files(config.sources)) / 1e6
    rows = sum(total["rows"] for manifest in built.manifests.values() for total in manifest.totals().values())
    for stage, taken in executor.seconds.items():
        print(f"{stage:28s} {taken:8.2f} CPU s {100 * taken / seconds:5.1f}% {megabytes / max(taken, 1e-9):9.1f} MB/s")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    print(
        f"{'all, verified':28s} {seconds:8.2f} CPU s 100.0% {megabytes / seconds:9.1f} MB/s of stored input a core\n"
        f"{megabytes:.1f} MB, {rows:,} instances of {' '.join(map(str, config.lengths))} tokens, dupe factor "
        f"{config.dupe_factor}, {shard_bytes / rows:.0f} bytes an instance, {wall:.1f} s on the clock, "
        f"peak {peak:.0f} MiB; verified {shard_bytes / 1e6 / executor.seconds['check_shard']:.0f} MB of shards a second"
    )
    sys.stdout.flush()
    return 0
