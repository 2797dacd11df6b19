"""Which launcher started this process, and which rank it is: a table of the variables that launchers set."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from megabert.distributed.parent_death import SET_BY_SCRIPTS, SET_BY_SRUN
from megabert.foundation.errors import ConfigError, Echo

MEETING_THREAD = "megabert-meeting"
"""Name of the thread in which a rank meets the others (`meeting.meet`); while it runs, Python cannot end in order."""
_SCONTROL_TIMEOUT_S = 60.0
_SIZES_OF_MPI = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE")  # of mpirun; srun --mpi=pmi2 sets the first one as well
_MOST_DIGITS = 18  # any such number fits into 64 bits
_SHOWN = 40  # characters of a wrong value in its message
_REMEDY = "Launchers (torchrun, deepspeed, srun) set it; where a script or a shell does, correct it there or unset it."


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """The variables by which a launcher gives a process its rank."""

    name: str
    """The launcher, in the words of messages."""
    needs: tuple[str, ...]
    """Variables that are all set in its processes, and not all set elsewhere."""
    rank: str
    """Variable with the rank."""
    size: str
    """Variable with the number of ranks."""
    local_rank: str
    """Variable with the rank among the ranks of this host."""
    address: Callable[[Mapping[str, str]], str] = lambda _: "127.0.0.1"
    """Returns MASTER_ADDR for an environment without it."""
    port: Callable[[Mapping[str, str]], str] = lambda _: "29500"  # torchrun's default
    """Returns MASTER_PORT for an environment without it."""


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
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"MASTER_ADDR is not set, and {' '.join(command)} failed: {error}. Set it.") from error
    if not shown.split():
        raise ConfigError(f"MASTER_ADDR is not set, and {' '.join(command)} names no host. Set it.")
    return shown.split()


def _port_of_step(environment: Mapping[str, str]) -> str:
    """Return a port that two steps on one host hardly share.

    It is below 32768: Linux hands out ports from there on to any client that connects, so that one could be taken.
    """
    job, step = (_number(environment, name, "0") for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    return str(12_000 + (job * 16 + step) % 20_000)  # 12,000 to 31,999; 16 of them for the steps of a job


LAUNCHERS = (
    Launcher(
        name="torchrun, deepspeed, or a script that sets RANK",
        needs=SET_BY_SCRIPTS,
        rank="RANK",
        size="WORLD_SIZE",
        local_rank="LOCAL_RANK",
    ),
    Launcher(
        name="srun, one task per rank",
        needs=SET_BY_SRUN,
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
    """Return this process's rank; "0" if it is alone or its launcher wrote no rank, so that somebody reports errors."""
    launcher = find_launcher(environment)
    rank = "0" if launcher is None else environment[launcher.rank].strip()
    return rank.lstrip("0") or "0" if _is_number(rank) else "0"


def _is_number(text: str) -> bool:
    """Return whether a text is a whole number that is not negative; Python's ``isdigit`` takes a superscript two."""
    return text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS


def _number(
    environment: Mapping[str, str],
    name: str,
    default: str | None = None,
    *,
    least: int = 0,
    below: tuple[str, int] | None = None,
) -> int:
    """Return a launcher's variable as a number.

    Raises:
        ConfigError: It is none, or is outside of ``least`` and ``below`` (the bound's name and value).
    """
    text = environment.get(name, default)
    place = f"{name}={(text or '')[:_SHOWN]!a} in the environment"
    if text is None or not _is_number(text.strip()):
        raise ConfigError(f"{place}: a whole number is wanted. {_REMEDY}")
    value = int(text)
    if value < least or (below and value >= below[1]):
        bound = f" and below {below[1]:,} ({below[0]})" if below else ""
        raise ConfigError(f"{place}: it has to be at least {least}{bound}. {_REMEDY}")
    return value


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
        ConfigError: A launcher's variable is not a number, the first host cannot be found out, or mpirun started
            several processes, each of which would be a world of its own.
    """
    launcher = find_launcher(environment)
    if launcher is None:
        size = max(_number(environment, name, "1") for name in _SIZES_OF_MPI)
        if size > 1:
            raise ConfigError(
                f"mpirun started {size} processes (PMI_SIZE or OMPI_COMM_WORLD_SIZE in the environment), which would "
                f"each train alone. Start ranks with srun -n {size} or torchrun --nproc-per-node {size}; for a process "
                "that is to be alone: export RANK=0 WORLD_SIZE=1",
                see="ranks-do-not-find-each-other",
            )
        return {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    size = _number(environment, launcher.size, least=1)
    variables = {
        "RANK": str(_number(environment, launcher.rank, below=(launcher.size, size))),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(_number(environment, launcher.local_rank, "0", below=(launcher.size, size))),
    }
    # Where to meet: as the user set it, or from the launcher's variables. A rank that is alone meets nobody.
    if variables["WORLD_SIZE"] != "1":
        variables["MASTER_ADDR"] = environment.get("MASTER_ADDR") or launcher.address(environment)
        variables["MASTER_PORT"] = environment.get("MASTER_PORT") or launcher.port(environment)
        _number(variables, "MASTER_PORT", least=1, below=("the number of ports", 65_536))
    return variables
