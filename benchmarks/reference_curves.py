"""Writes the reference curves of a recipe: builds the shards, trains three seeds, and gathers what they logged.

    python benchmarks/reference_curves.py debug-english       # writes megabert/recipes/reference/debug-english.json
    python benchmarks/reference_curves.py RECIPE-TEXT --runs RUN RUN RUN --text 'Wikipedia of ...'   # from other runs

The first form takes about 15 CPU minutes; finished shards and runs in ``--folder`` are taken as they are. The second
form is for recipes that need a GPU: give the runs more validations than the recipe has (``--validation.every-steps``,
which changes nothing that is learned), so that each phase has several.
"""

import argparse
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from megabert.foundation.errors import ConfigError
from megabert.foundation.files import atomic_write
from megabert.foundation.json_files import adapter_of, read_json
from megabert.observability.metrics import read_metrics
from megabert.settings.config.loading import differences
from megabert.settings.config.phase import PhaseConfig
from megabert.settings.config.run import RunConfig
from megabert.tokens.shards.shard_set import ShardSet
from megabert.tooling.measurements.reference import (
    FOLDER,
    SERIES,
    Reference,
    ReferencePhase,
    Series,
    science_fields,
)
from megabert.tooling.reports.on_track import shards_of
from megabert.training.run.folder import ENVIRONMENT_NAME, read_config, run_sources

ROOT = Path(__file__).resolve().parents[1]
SEEDS = (42, 1, 2)
ENGLISH, KOREAN = "examples/corpus/public_domain.jsonl", "examples/corpus/korean.jsonl"


@dataclass(frozen=True)
class Curves:
    """How the curves of a recipe on a text are made."""

    recipe: str
    text: str
    build: str
    """Further flags of ``megabert-data build``, without ``--for`` and ``--output``."""
    run: str
    """Further flags of ``megabert pretrain``, without recipe, seed and paths."""


def _bundled(recipe: str, *, build: str, every: int, text: str = ENGLISH) -> Curves:
    """Return the curves of a recipe on a bundled corpus; ``every`` is the number of steps between validations."""
    language = "en" if text == ENGLISH else "ko"
    build = f"--input {text} --format jsonl --language {language} --validation-share 0.06 {build}"
    return Curves(recipe, text, build, f"--validation.every-steps {every}")


SHIPPED_CURVES = {
    "debug-english": _bundled("debug", build="--vocab-size 4096", every=100),
    "demo-english": _bundled("demo", build="--uncased --vocab-size 2048", every=200),
    "demo-korean": _bundled("demo", build="--vocab-size 4096", every=200, text=KOREAN),
    "demo_modern-english": _bundled("demo_modern", build="--uncased --vocab-size 2048", every=60),
}
DIGITS = 4


def reference_of(run_dirs: list[Path], *, text: str, commands: list[str], commit: str) -> Reference:
    """Return the curves of some runs.

    Args:
        run_dirs: Finished runs of one recipe over the same shards, with different seeds.
        text: What the shards were built from, as ``compare`` shows it.
        commands: What built the shards and trained the runs.
        commit: Commit of the code that did.

    Raises:
        ConfigError: The runs differ in more than the seed, or logged different steps.
    """
    configs = [read_config(run_dir) for run_dir in run_dirs]
    shards = [shards_of(run_dir, config) for run_dir, config in zip(run_dirs, configs, strict=True)]
    for run_dir, config, own in zip(run_dirs, configs, shards, strict=True):
        differing = differences(science_fields(configs[0]), science_fields(config))
        if differing or own != shards[0] or None in own:
            what = ", ".join(differing) or "shards"
            raise ConfigError(f"{run_dir}: differs from {run_dirs[0]} in {what}. Give runs that differ in seeds alone.")
    seeds = [config.seed for config in configs]
    if len(set(seeds)) != len(seeds):
        raise ConfigError(f"{run_dirs[0]} and the others have the seeds {seeds}. Give runs with different seeds.")
    config, first = configs[0], run_dirs[0]
    environment = read_json(first / ENVIRONMENT_NAME, dict[str, Any], remedy="Give a run folder.")
    rows = [read_metrics(run_dir) for run_dir in run_dirs]
    return Reference(
        recipe=config.name,
        text=text,
        commands=commands,
        commit=commit,
        device=_device(environment["devices"]),
        seeds=seeds,
        vocab_size=int(config.model.vocab_size),
        data_sha256=[str(identity) for identity in shards[0]],
        config=science_fields(config),
        phases=[
            replace(_phase(rows, number, phase.max_seq_length), held_out_instances=_held_out(first, config, phase))
            for number, phase in enumerate(config.phases, 1)
        ],
    )


def _held_out(run_dir: Path, config: RunConfig, phase: PhaseConfig) -> int:
    """Return the number of held-out instances that a validation scores."""
    (folder,) = run_sources(run_dir, config, phase)
    return min(ShardSet.open(folder, "validation").num_rows, config.validation.max_instances)


def _phase(runs: list[list[dict[str, Any]]], number: int, length: int) -> ReferencePhase:
    """Return the series of a phase; the runs have logged the same steps."""
    own = [[row for row in rows if row["phase"] == number] for rows in runs]
    series = {}
    for tag in SERIES:
        tables = [{row["step"]: row[tag] for row in rows if tag in row} for rows in own]
        if len({tuple(table) for table in tables}) != 1:
            raise ConfigError(f"phase {number}: {tag} was logged at different steps. Give finished runs, logged alike.")
        if tables[0]:
            values = [[round(value, DIGITS) for value in table.values()] for table in tables]
            series[tag] = Series(steps=list(tables[0]), values=values)
    # Both rates are over the same seconds, so that their ratio is the mean length of an instance.
    rates = [row for row in own[0] if "perf/tokens_per_s" in row]
    length_mean = sum(row["perf/tokens_per_s"] / row["perf/sequences_per_s"] for row in rates) / len(rates)
    batch = sum(row["train/global_batch_size"] for row in rates) / len(rates)
    return ReferencePhase(max_seq_length=length, tokens_per_step=round(batch * length_mean, 1), series=series)


def write_curves(run_dirs: list[Path], output: Path, *, text: str, commands: list[str]) -> None:
    """Write the curves of some runs; the arguments are those of ``reference_of``."""
    git = ["git", "rev-parse", "--short=10", "HEAD"]
    head = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=False)
    reference = reference_of(run_dirs, text=text, commands=commands, commit=head.stdout.strip() or "unknown")
    atomic_write(output, adapter_of(Reference).dump_json(reference) + b"\n")
    print(f"{output}: {output.stat().st_size / 1000:.1f} kB")


def make_runs(curves: Curves, folder: Path) -> tuple[list[Path], list[str]]:
    """Build the shards and train the seeds, as far as they are not there; return the run folders and the commands."""
    data, runs = folder / "data", [folder / f"seed_{seed}" for seed in SEEDS]
    build = f"megabert-data build --for {curves.recipe} {curves.build} --output"
    train = f"megabert pretrain --recipe {curves.recipe} {curves.run} --data.path {{data}} --seed"
    if not (data / "instances").is_dir():
        _call("data_prep", f"{build} {data}")
    for seed, run_dir in zip(SEEDS, runs, strict=True):
        _call("megabert", f"{train.format(data=data)} {seed} --run-dir {run_dir}")
    return runs, [f"{build} data", f"{train.format(data='data')} {SEEDS[0]} --run-dir seed_{SEEDS[0]}"]


def _device(devices: list[str]) -> str:
    return devices[0] if len(devices) == 1 else f"{len(devices)} x {devices[0]}"


def _call(module: str, command: str) -> None:
    subprocess.run([sys.executable, "-m", module, *command.split()[1:]], cwd=ROOT, check=True)


def main() -> None:
    """Make the runs or take those that are named, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help=f"RECIPE-TEXT; without --runs one of {', '.join(SHIPPED_CURVES)}")
    parser.add_argument("--runs", nargs="+", type=Path, help="finished runs with different seeds")
    parser.add_argument("--text", help="what their shards were built from")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "reference_curves", help="shards and runs")
    parser.add_argument("--output", type=Path, help="file to write (default: among the recipes)")
    options = parser.parse_args()
    if options.runs:
        runs, commands = (
            options.runs,
            (options.runs[0] / "command.txt").read_text().splitlines()[:1],
        )
    else:
        runs, commands = make_runs(SHIPPED_CURVES[options.name], options.folder / options.name)
    text = options.text or SHIPPED_CURVES[options.name].text
    write_curves(runs, options.output or FOLDER / f"{options.name}.json", text=text, commands=commands)


if __name__ == "__main__":
    main()
