"""Which launcher started this process, and which rank it is: a table of the variables that launchers set."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from megabert.errors import ConfigError, Echo

_SCONTROL_TIMEOUT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """How a launcher tells a process which rank it is."""

    name: str
    """The launcher, in the words of messages."""
    needs: tuple[str, ...]
    """Variables that are all set in its processes, and not all set elsewhere."""
    rank: str
    """Variable with the rank."""
    size: str
    """Variable with the number of ranks."""
    local_rank: str
    """Variable with the rank among those of this host."""
    address: Callable[[Mapping[str, str]], str]
    """Returns MASTER_ADDR where the environment has none."""
    port: Callable[[Mapping[str, str]], str]
    """Returns MASTER_PORT where the environment has none."""


def step_hosts(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return the hosts of a SLURM step, in SLURM's order; an empty list outside of a job.

    Raises:
        ConfigError: SLURM's list is abbreviated and scontrol cannot be asked.
    """
    hosts = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST", "")
    if not any(sign in hosts for sign in "[,"):
        return [hosts] if hosts else []
    if shutil.which("scontrol") is None:
        raise ConfigError(
            f"MASTER_ADDR is not set, and without scontrol (in a container?) the first host of {hosts!r} is unknown. "
            'Before srun: export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
            see="ranks-do-not-find-each-other",
        )
    command = ["scontrol", "show", "hostnames", hosts]
    try:
        shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_SCONTROL_TIMEOUT_S).stdout
        return [shown.split()[0], *shown.split()[1:]]
    except (OSError, subprocess.SubprocessError, IndexError) as error:
        raise ConfigError(f"MASTER_ADDR is not set, and {' '.join(command)} failed: {error}. Set it.") from error


def _port_of_step(environment: Mapping[str, str]) -> str:
    """Return a port that two steps on one host hardly share.

    It is below 32768, where Linux begins to hand out ports to whoever connects: one of those could be taken already.
    """
    job, step = (int(environment.get(name, "0")) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    return str(12_000 + (job * 16 + step) % 20_000)


LAUNCHERS = (
    Launcher(
        name="torchrun, deepspeed, or a script that sets RANK",
        needs=("RANK", "WORLD_SIZE"),
        rank="RANK",
        size="WORLD_SIZE",
        local_rank="LOCAL_RANK",
        address=lambda _: "127.0.0.1",
        port=lambda _: "29500",
    ),
    Launcher(
        name="srun, one task a rank",
        # A batch script itself has SLURM_PROCID as well, but is no task of a step.
        needs=("SLURM_PROCID", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS"),
        rank="SLURM_PROCID",
        size="SLURM_STEP_NUM_TASKS",
        local_rank="SLURM_LOCALID",
        address=lambda environment: next(iter(step_hosts(environment)), ""),  # rank 0's
        port=_port_of_step,
    ),
)
"""Launchers in order of precedence: torchrun may run inside a step of srun."""


def find_launcher(environment: Mapping[str, str] = os.environ) -> Launcher | None:
    """Return what started this process, or None for a process that is alone."""
    return next((launcher for launcher in LAUNCHERS if all(name in environment for name in launcher.needs)), None)


def own_rank(environment: Mapping[str, str] = os.environ) -> str:
    """Return this process's rank as its launcher wrote it, "0" for a process that is alone."""
    launcher = find_launcher(environment)
    return "0" if launcher is None else environment[launcher.rank]


@contextlib.contextmanager
def before_ranks_meet() -> Iterator[None]:
    """Let rank 0 alone report a wrong configuration: every rank reads the same command line and the same files."""
    try:
        yield
    except ConfigError as error:
        if own_rank() == "0":
            raise
        raise Echo(error) from error


def describe_rank(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT as this process's launcher means them.

    Raises:
        ConfigError: A launcher's variable is not a number, or the first host cannot be found out.
    """
    launcher = find_launcher(environment)
    if launcher is None:
        return {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    variables = {
        "RANK": environment[launcher.rank],
        "WORLD_SIZE": environment[launcher.size],
        "LOCAL_RANK": environment.get(launcher.local_rank, "0"),
    }
    origins = (launcher.rank, launcher.size, launcher.local_rank)
    for (name, value), variable in zip(variables.items(), origins, strict=True):
        if not value.isdecimal():
            raise ConfigError(f"{variable}={value!r} in the environment ({launcher.name}) must be a number: {name}.")
    # Where to meet: as the user set it, or as the launcher's variables tell. A rank that is alone meets nobody.
    if variables["WORLD_SIZE"] != "1":
        variables["MASTER_ADDR"] = environment.get("MASTER_ADDR") or launcher.address(environment)
        variables["MASTER_PORT"] = environment.get("MASTER_PORT") or launcher.port(environment)
    return variables
