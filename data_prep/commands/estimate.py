"""Print the disk, memory, files and time that a build takes.

Arguments:
  --input-bytes SIZE  bytes of text, uncompressed, in place of --input: 500GB, 10TB
  --ranks N           processes or MPI ranks, a core each
  --output DIR        folder of the build; refused where its disk is too small
  --measure           measure the rates of this machine first (half a minute), in place of an AMD EPYC's

Examples:
  megabert-data estimate --input-bytes 10TB --ranks 1000
  megabert-data estimate --input 'texts/*.jsonl' --lengths 128 --output data/mine
"""

import re
import tempfile
import time
from argparse import ArgumentTypeError, Namespace
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.commands.options import SOURCE_FIELDS, add_source_arguments, make_config, require_named
from data_prep.config.build import BuildConfig
from data_prep.execution.executors import Executor
from data_prep.execution.work_units import Unit
from data_prep.extract.inputs import find_files
from data_prep.pipeline import build_shards
from data_prep.planning.estimate import RATES, WORKER_MIB, BuildEstimate, estimate, require_space, shown
from data_prep.planning.text_sample import sample_text
from megabert.foundation.errors import ConfigError
from megabert.foundation.text_tables import render_table, span
from megabert.settings.command_line.parser import Parser, positive
from megabert.settings.config import loading

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_LETTERS = str.maketrans("0123456789", "ghijklmnop")


def add_arguments(parser: Parser) -> None:
    """Describe the command."""
    add_source_arguments(parser)
    parser.add_argument("--input-bytes", type=_size)
    parser.add_rule("--input-bytes", excludes=["--input", *(f"--{name}".replace("_", "-") for name in SOURCE_FIELDS)])
    parser.add_argument("--ranks", type=positive, default=1)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--measure", action="store_true")
    parser.add_fields(
        BuildConfig, first=("input-bytes", "ranks", "input", "config", "lengths", "dupe-factor", "measure")
    )


def _size(text: str) -> int:
    """Read a number of bytes, such as 10TB; the units are decimal."""
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*([KMGTP]?)B?", text.strip().upper())
    if match is None or not float(match[1]):
        raise ArgumentTypeError(f"{text!r} is no number of bytes; write 500GB or 10TB")
    return int(float(match[1]) * UNITS[match[2]])


def run(options: Namespace) -> None:
    """Estimate and print."""
    if options.input_bytes:
        options.input = ["(planned)"]
    config = make_config(options)
    if options.measure and config.holds_ids:
        raise ConfigError(
            "--measure times a build from text, most of whose work ids do without. Leave it out: the times that are "
            "shown then are of text of the same size, and too long for ids."
        )
    files = options.input_bytes or find_files(config.sources)
    require_named(config, options.output)
    rates = measured_rates(config) if options.measure else None
    sample = None if isinstance(files, int) else sample_text(config, files)
    plan = estimate(config, files, options.ranks, rates=rates, sample=sample)
    print("\n".join(estimate_lines(plan)))
    if options.output:
        print(require_space(plan, options.output))


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


def estimate_lines(plan: BuildEstimate) -> list[str]:
    """Return an estimate as text."""
    rows = [
        (s.title, f"{s.units:,}", f"{s.opened:,}", f"{s.files:,}", shown(s.bytes), span(s.seconds)) for s in plan.stages
    ]
    headers = ("step", "units", "files opened", "files written", "bytes written", "time")
    table = render_table(rows, headers=headers, align="lrrrrr").splitlines()
    shuffle = sum(s.bytes for s in plan.stages if s.title in ("tokens", "chunks", "documents"))
    idle = max(0, plan.ranks - max(s.units for s in plan.stages))
    return [
        f"{shown(plan.text_bytes)} of {_kind(plan)}, {plan.ranks:,} ranks; about:",
        *table,
        f"time: {span(plan.seconds)}, if files are read and written as fast as cores ask",
        f"shuffle: {shown(shuffle)} written, and as much read; one unit opens {plan.most_opened} files at most",
        f"disk: {shown(plan.peak_bytes)} at the peak, {shown(plan.end_bytes)} at the end; "
        f"{plan.shards:,} training shards of each length",
        f"instances: about {' or '.join(f'{n:,} of {length}' for length, n in plan.instances.items())} tokens, if each "
        "is full and no pair is cut; passes over N of them: megabert estimate --recipe NAME --instances N",
        f"memory: {WORKER_MIB} MiB a rank, {plan.rank0_mib:,} MiB at a restart on the one that hands out",
        *([f"{idle:,} of the ranks find no unit: fewer are as fast"] if idle else []),
    ]


def _kind(plan: BuildEstimate) -> str:
    sample = plan.sample
    if len(sample.document_bytes) == 1:
        return f"text, taken to be English ({sample.bytes_per_token:.2f} bytes per token)"
    kind = "ids" if sample.holds_ids else "text"
    looked_at = f"{len(sample.document_bytes):,} documents that were looked at"
    return f"{kind} ({sample.bytes_per_token:.2f} bytes per token in {looked_at})"
