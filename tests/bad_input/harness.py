"""Running a command with bad input and judging what its user gets.

A case is a row: what the folder holds, the command, and what has to come of it. A command passes when it ends with the
exit code that docs/troubleshooting.md gives to the kind of error, says one sentence that names place and remedy, shows
no traceback and no control characters, leaves the folder as it was, and stays within bounds of time and memory.
"""

import fnmatch
import hashlib
import os
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forked.client import environment_of_commands, fork_server, request_of

MODULES = {"megabert": "megabert", "megabert-data": "data_prep"}
MAX_MESSAGE_CHARACTERS = 4000
LARGEST_HASHED = 1 << 30
ERROR = re.compile(r"^(?:\[rank \d+\] )?megabert(?:-data)?: (?:\w+Error|interrupted)", re.MULTILINE)
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]|\x1b")

Step = Callable[[Path, Path], None]
"""Prepares a case: gets the folder in which the command runs, and the folder of sound material."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One bad input."""

    name: str
    command: str
    """A line for the shell, run in the folder of the case."""
    given: tuple[Step, ...] = ()
    """What makes the folder, in order."""
    code: int | tuple[int, ...] = 3
    """Exit code, or those that are right."""
    says: tuple[str, ...] = ()
    """What the message has to name: the place, the value, the remedy."""
    leaves: tuple[str, ...] = ()
    """Patterns of files that may be new or changed afterwards."""
    environment: dict[str, str | None] = field(default_factory=dict)
    stdin: str = os.devnull
    stdout: str | None = None
    """A file of the machine that takes the output, such as /dev/full."""
    timeout_s: float = 60
    memory_bytes: int = 3 << 30
    file_bytes: int | None = None
    """Limit of file size (``ulimit -f``)."""
    quick: bool = False
    """Whether ``make test`` has it; the others are ``make soak``'s."""

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Outcome:
    """What came of a command."""

    code: int
    seconds: float
    peak_bytes: int
    ended: str
    stdout: str
    stderr: str
    changed: tuple[str, ...]
    """Files and folders that are new, gone or different."""


class CommandServer:
    """Runs commands through a process that has everything imported."""

    def run(self, command: str, folder: Path, outputs: Path, **wishes: Any) -> Outcome:
        """Run a command line in a folder; its output goes to files under ``outputs``."""
        before = snapshot(folder)
        (reply,) = fork_server().ask([_request(command, folder, outputs, wishes)])
        after = snapshot(folder)
        changed = tuple(sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path)))
        return _outcome(reply, outputs, changed)

    def run_case(self, case: Case, material: Path, scratch: Path) -> Outcome:
        """Make a case's folder under ``scratch`` and run its command there."""
        folder = scratch / "case"
        folder.mkdir()
        for step in case.given:
            step(folder, material)
        wishes = ("environment", "stdin", "stdout", "timeout_s", "memory_bytes", "file_bytes")
        return self.run(case.command, folder, scratch / "output", **{name: getattr(case, name) for name in wishes})


def _request(command: str, folder: Path, outputs: Path, wishes: dict[str, Any]) -> dict[str, Any]:
    """Return what the server is asked; the files for the output are new."""
    program, *words = shlex.split(command)
    outputs.mkdir(parents=True, exist_ok=True)
    files = {name: outputs / name for name in ("stdout", "stderr", "modules")}
    for path in files.values():
        path.unlink(missing_ok=True)
    environment = environment_of_commands()
    for name, value in wishes.get("environment", {}).items():
        environment.pop(name, None)
        if value is not None:
            environment[name] = value
    own = {name: value for name, value in wishes.items() if name != "environment" and value is not None}
    surroundings = {"folder": folder, "environment": environment, "stdout": files["stdout"], "stderr": files["stderr"]}
    bounds = {"timeout_s": 60, "memory_bytes": 3 << 30}
    return request_of(MODULES[program], words, files["modules"], **{**surroundings, **bounds, **own})


def _outcome(reply: dict[str, Any], outputs: Path, changed: tuple[str, ...]) -> Outcome:
    return Outcome(**reply, stdout=text_of(outputs / "stdout"), stderr=text_of(outputs / "stderr"), changed=changed)


def text_of(path: Path) -> str:
    """Return what a command wrote, undecodable bytes visible."""
    return path.read_bytes().decode("utf-8", "backslashreplace") if path.exists() else ""


def snapshot(folder: Path) -> dict[str, str]:
    """Return what a folder holds: path to kind and content."""
    return dict(_entries(folder))


def _entries(folder: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(folder.rglob("*")):
        name = os.fsencode(path.relative_to(folder)).decode("utf-8", "backslashreplace")
        if path.is_symlink():
            yield name, f"link to {os.readlink(path)}"
        elif path.is_dir():
            yield name, "folder"
        elif path.is_file() and path.stat().st_size > LARGEST_HASHED:
            yield name, f"{path.stat().st_size} bytes"
        elif path.is_file():
            yield name, hashlib.sha256(path.read_bytes()).hexdigest()
        else:
            yield name, "device"


def problems_of(case: Case, outcome: Outcome) -> list[str]:
    """Return what is wrong with a command's answer to a bad input; nothing where it is right."""
    codes = case.code if isinstance(case.code, tuple) else (case.code,)
    problems = list(common_problems(outcome))
    if outcome.code not in codes:
        problems.append(f"exit code {outcome.code}, not {case.code}")
    if outcome.code != 0:
        errors = ERROR.findall(outcome.stderr)
        if len(errors) != 1:
            problems.append(f"{len(errors)} error messages, not one")
    problems += [f"does not name {phrase!r}" for phrase in case.says if phrase not in outcome.stderr + outcome.stdout]
    locked = {path.removesuffix("/.lock") for path in outcome.changed if path.endswith(".lock")}
    allowed = (*case.leaves, "*.lock")  # a lock is empty, and its folder may be new
    residue = [path for path in outcome.changed if not any(fnmatch.fnmatch(path, pattern) for pattern in allowed)]
    residue = [path for path in residue if path not in locked]
    if residue:
        problems.append(f"left or changed {residue[:6]}")
    return problems


def common_problems(outcome: Outcome) -> Iterator[str]:
    """Yield what no command may do, whatever its input."""
    if outcome.ended:
        yield f"killed: too much {outcome.ended} ({outcome.seconds:.0f} s, {outcome.peak_bytes >> 20} MiB)"
    elif outcome.code < 0:
        yield f"died of signal {-outcome.code}"
    if "Traceback" in outcome.stderr + outcome.stdout:
        yield "a traceback"
    if CONTROL.search(outcome.stderr) or CONTROL.search(outcome.stdout):
        yield "control characters on the terminal"
    if len(outcome.stderr) > MAX_MESSAGE_CHARACTERS:
        yield f"{len(outcome.stderr)} characters of messages"
