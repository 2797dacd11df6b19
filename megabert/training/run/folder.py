"""The run folder: the configuration of a run, and its changes when it is resumed.

``config.yaml`` holds the complete configuration. A field that the result depends on (a ``science`` field, see
``config.run``) cannot change any more, since a run folder holds one experiment. A field of ``FREE_ON_RESUME``, such as
the ZeRO stage or the logging interval, may change with every start.
"""

import shlex
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from megabert.checkpoints.format import steps_in
from megabert.foundation.errors import CheckpointError, DataError
from megabert.foundation.files import atomic_write, is_temporary, open_to_append
from megabert.foundation.json_files import read_json, write_json
from megabert.foundation.remote_files import is_url
from megabert.observability.environment import describe_environment
from megabert.settings.config.loading import builds_read, differences, merge_layers, phase_data, to_dict, to_yaml
from megabert.settings.config.phase import PhaseConfig
from megabert.settings.config.run import RunConfig, is_science
from megabert.training.run.status import STATUS_NAME

CONFIG_NAME = "config.yaml"
ENVIRONMENT_NAME = "environment.json"


def checkpoints_dir(run_dir: Path) -> Path:
    """Return the folder of the run's checkpoints."""
    return run_dir / "checkpoints"


def tokenizer_dir(run_dir: Path) -> Path:
    """Return the run's copy of the tokenizer that its shards were made with."""
    return run_dir / "tokenizer"


def read_config(run_dir: Path) -> RunConfig:
    """Return the resolved configuration that a run recorded.

    Raises:
        CheckpointError: The folder is no run folder, or its configuration is lost.
    """
    path = run_dir / CONFIG_NAME
    if not path.is_file():
        refuse_lost_config(run_dir)
        raise CheckpointError(f"{run_dir}: has no {CONFIG_NAME}, so it is no run folder. Name one: runs/NAME.")
    return merge_layers(RunConfig, path)


def refuse_lost_config(run_dir: Path) -> None:
    """Refuse a folder without a configuration if it has checkpoints, and say how the configuration comes back.

    Raises:
        CheckpointError: It is such a folder.
    """
    path, copy = run_dir / CONFIG_NAME, checkpoints_dir(run_dir) / CONFIG_NAME
    steps = steps_in(checkpoints_dir(run_dir))
    if not steps:
        return
    backup = f"Copy it from a backup, or write it from the commands in {run_dir / 'command.txt'}."
    remedy = f"Copy it back: {shlex.join(['cp', str(copy), str(path)])}" if copy.is_file() else backup
    raise CheckpointError(f"{path}: is lost, and the run has checkpoints up to step {steps[0]}. {remedy}")


def with_found_data(run_dir: Path, config: RunConfig) -> RunConfig:
    """Return a run's configuration for a command in another folder; builds that no phase reads stay as they are.

    Raises:
        DataError: The configuration names data relative to a folder that is not known.
    """
    data, builds = config.data, {name: build for p in config.phases for name, build in builds_read(config, p).items()}
    read = {name: _found(run_dir, build, "instances") for name, build in builds.items()}
    cache = data.cache and str(_started_in(run_dir) / data.cache)
    sources = data.sources and {**data.sources, **read}
    data = replace(data, path=read.get("", data.path), sources=sources, cache=cache)
    phases = tuple(replace(phase, data=phase.data and _found(run_dir, phase.data)) for phase in config.phases)
    return replace(config, data=data, phases=phases)


def run_sources(run_dir: Path, config: RunConfig, phase: PhaseConfig) -> list[Path]:
    """Return the folders of a phase's shards, found as by `with_found_data`."""
    found = with_found_data(run_dir, replace(config, phases=(phase,)))
    return list(phase_data(found, found.phases[0]).values())


def _started_in(run_dir: Path) -> Path:
    """Return the folder that a run was started in; the current one if that is not known, or not of this machine."""
    with suppress(DataError):  # the record is missing or damaged
        folder = Path(str(read_json(run_dir / ENVIRONMENT_NAME, dict[str, Any], remedy="").get("folder", "")))
        return folder if folder.is_dir() else Path()
    return Path()


def _found(run_dir: Path, place: str, inside: str = "") -> str:
    """Return a folder of shards or a URL as it is seen from here; ``inside`` is what tells the folder from another."""
    if is_url(place):
        return place
    for folder in (Path(place), _started_in(run_dir) / place):
        if Path(place).is_absolute() or (folder / inside).exists():
            return str(folder)
    raise DataError(
        f"{place}: the shards of {run_dir} are not there, seen from {Path.cwd()}. Call this in the folder where the "
        "run was started, or copy the shards back.",
        see="there-are-no-shards",
    )


def changes_since(run_dir: Path, config: RunConfig) -> list[str]:
    """Return a line for every field in which a configuration differs from the one that a run recorded."""
    changed = differences(to_dict(read_config(run_dir)), to_dict(config))
    return [f"{path}: {old!r} -> {new!r}" for path, (old, new) in changed.items()]


def claim_run_folder(run_dir: Path, config: RunConfig) -> list[str]:
    """Check a run folder against the configuration, before anything is written.

    Args:
        run_dir: New, empty, or the folder of an earlier run.
        config: Resolved configuration.

    Returns:
        Lines that say which free fields changed since the last start; empty for a new run.

    Raises:
        CheckpointError: A science field differs, the folder holds something else, or its configuration is lost.
    """
    # A new folder, an empty one, or one that a start left before it wrote its configuration.
    if not run_dir.exists() or not any(path.name != ".lock" for path in run_dir.iterdir()):
        return []
    if not (run_dir / CONFIG_NAME).is_file():
        refuse_lost_config(run_dir)
        # From a start that was killed, or hung (then with a status), before it wrote its configuration.
        own = (".lock", "logs", "heartbeats", STATUS_NAME)
        if all(path.name in own or is_temporary(path) for path in run_dir.iterdir()):
            return []
        raise CheckpointError(
            f"{run_dir}: is not empty and has no {CONFIG_NAME}, so it is no run folder. Choose another --run-dir."
        )
    # A run folder: only fields that the result does not depend on may differ.
    changes = changes_since(run_dir, config)
    science = [change for change in changes if is_science(change.partition(":")[0])]
    if science:
        lines = "\n".join(f"  {change}" for change in science)
        raise CheckpointError(
            f"{run_dir}: was begun with another configuration; these fields make it another experiment:\n{lines}\n"
            f"Continue with the recorded values, or begin a new run with these, from a checkpoint of this one:\n"
            f"  {fork_command(run_dir)}",
            see="the-run-folder-holds-another-experiment",
        )
    return changes


def fork_command(run_dir: Path) -> str:
    """Return the beginning of the command that forks a run at its newest checkpoint."""
    step = next(iter(steps_in(checkpoints_dir(run_dir))), "STEP")
    return f"megabert pretrain --fork {shlex.quote(f'{run_dir}@{step}')} --run-dir NEW ..."


def record_run(run_dir: Path, config: RunConfig, deepspeed: dict[str, Any]) -> None:
    """Write configuration, command, environment and DeepSpeed dictionary into the run folder."""
    for folder in (run_dir, checkpoints_dir(run_dir)):  # checkpoints are worth nothing without it, so it is there twice
        atomic_write(folder / CONFIG_NAME, to_yaml(config))
    command = shlex.join([sys.executable, "-m", "megabert", *sys.argv[1:]])
    with open_to_append(run_dir / "command.txt") as file:  # a line is a start, so a line feed is written as in Bash
        file.write(command.replace("\n", r"'$'\n''") + "\n")
    write_json(run_dir / ENVIRONMENT_NAME, describe_environment())
    write_json(run_dir / "deepspeed.json", deepspeed)
