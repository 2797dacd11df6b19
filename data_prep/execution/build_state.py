"""What the folder of a build remembers, so that the same command continues it and no other one spoils it.

``build.json`` holds the configuration, the inputs with their hashes, and the versions of the packages. Every start
hashes the inputs again: a file that was replaced may have the size and the time of the one before it. A lock lets one
build at a time write into the folder.
"""

import fcntl
import hashlib
import json
import os
import shutil
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import megabert
from data_prep.config import BuildConfig
from data_prep.execution.executors import Executor
from data_prep.execution.sealed import seal, unseal
from data_prep.extract.opening import InputFile, input_sha256
from megabert.config import loading
from megabert.errors import ConfigError, DataError, MegabertError
from megabert.files import (
    atomic_write,
    is_temporary,
    open_in_place,
    open_lock,
    read_small,
    refuse_linked_folders,
    try_lock,
)

STATE_NAME = "build.json"
REFUSED = Path("work", "refused")
"""File that is there while the last run's corpus was refused."""
DECISIVE = ("megabert", "sentencex", "tokenizers")
"""Other versions of these may cut or number text differently."""
PACKAGES = (*DECISIVE, "numpy", "pyarrow")
OF_TEXT = ("extract", "paragraphs")
"""Steps that depend on the text and its cleaning alone: their records outlive a change of other settings."""


@dataclass(frozen=True)
class InputRecord:
    """One input file as a build read it."""

    path: str
    """Path or URL."""
    bytes: int
    """Size as stored."""
    sha256: str
    """Hash of the content."""


@dataclass(frozen=True)
class BuildState:
    """The content of ``build.json``."""

    config: dict[str, Any]
    """Full configuration."""
    inputs: list[InputRecord]
    """All files of all sources."""
    versions: dict[str, str]
    """Packages that shape the shards, by name."""

    @property
    def origins(self) -> "Origins":
        """Hashes of what records and plan are made from."""
        inputs = [(record.path, record.sha256) for record in self.inputs]
        texts = (json.dumps([part, inputs], sort_keys=True) for part in (_reading(self.config), self.config))
        return Origins(*(hashlib.sha256(text.encode()).hexdigest() for text in texts))


class Origins(NamedTuple):
    """Hashes of the input and the configuration, so that no state of one build is taken for that of another."""

    text: str
    """Hash of the input and of what decides the text that step 1 makes."""
    whole: str

    def context(self, step: str) -> str:
        """Return what the records of a step belong to, as `sealed` has it."""
        return _context(step, self.text if step in OF_TEXT else self.whole)


@cache
def _context(step: str, origin: str) -> str:
    return f"{step} of {origin}"


FOLDERS = ("work", "work/*", "documents", "tokenizer", "instances", "instances/*", "instances/*/tokenizer")
"""What a build makes in its folder."""


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold the folder for this build; the lock goes with the process, however it ends.

    Raises:
        DataError: Another build holds it, or the folder holds something else.
    """
    if folder.exists() and not folder.is_dir():
        raise DataError(f"{folder}: is a file. Give --output a folder.")
    names = [path.name for path in folder.iterdir()] if folder.exists() else []
    # A build that was killed while it first wrote its state leaves a temporary file alone.
    foreign = [name for name in names if name != ".lock" and not is_temporary(Path(name))]
    if foreign and not (folder / STATE_NAME).is_file():
        raise DataError(f"{folder}: holds other files ({', '.join(sorted(foreign)[:3])}). Give --output a new folder.")
    folder.mkdir(parents=True, exist_ok=True)
    refuse_linked_folders(folder, FOLDERS)
    # The file keeps its content until the lock is ours, so that whoever holds it can be read.
    with open_lock(folder / ".lock") as stream:
        try:
            is_locked = try_lock(stream, fcntl.LOCK_EX)
        except BlockingIOError:
            raise DataError(
                f"{folder}: another build is at work here ({stream.read().strip() or 'unknown process'}). "
                "Wait for it, end it, or give --output another folder."
            ) from None
        if not is_locked:
            print(
                f"warning: {folder}: this file system has no locks; do not start a second build here", file=sys.stderr
            )
        stream.truncate(0)
        stream.write(f"host {socket.gethostname()}, process {os.getpid()}\n")
        stream.flush()
        _remove_leftovers(folder)
        try:
            yield
        except KeyboardInterrupt:  # the workers were killed over what they wrote
            _remove_leftovers(folder)
            raise


def _remove_leftovers(folder: Path) -> None:
    """Delete the temporary files and folders of a build that was killed; the lock says that nobody writes them."""
    for path in [*folder.rglob(".*.tmp"), *folder.rglob(".*.tmp.old")]:
        if not is_temporary(path):  # somebody else's, such as .mine.tmp
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def remember(folder: Path, config: BuildConfig, files: list[InputFile], executor: Executor) -> BuildState:
    """Record configuration and inputs, or compare them with those of an earlier run.

    Returns:
        What is recorded.

    Raises:
        ConfigError: The configuration is another one.
        DataError: The inputs have changed, or the record is damaged.
    """
    path, now = folder / STATE_NAME, loading.to_dict(config)
    earlier = _read_state(path) if path.exists() else None
    is_refused = (folder / REFUSED).exists()
    if earlier is not None and not is_refused:
        _compare_config(folder, earlier.config, now)
    inputs = _hash_inputs(files, executor)
    if earlier is None:
        state = BuildState(now, inputs, installed_versions())
    elif is_refused:
        state = _follow_remedy(folder, earlier, now, inputs)
    else:
        _compare_inputs(folder, earlier.inputs, inputs)
        state = earlier
    if state != earlier:
        atomic_write(path, seal(asdict(state), STATE_NAME, indent=1))
    (folder / REFUSED).unlink(missing_ok=True)
    return state


def _read_state(path: Path) -> BuildState:
    remedy = "Delete the folder, or give --output a new one."
    return unseal(read_small(path), BuildState, STATE_NAME, where=str(path), remedy=remedy)


@contextmanager
def refusal_noted(folder: Path) -> Iterator[None]:
    """Note that the corpus was refused, where it is: then the next command may have other settings or other input."""
    try:
        yield
    except MegabertError:
        with suppress(OSError):
            os.close(open_in_place(folder / REFUSED, os.O_WRONLY))
        raise


def _follow_remedy(folder: Path, earlier: BuildState, config: dict[str, Any], inputs: list[InputRecord]) -> BuildState:
    """Take over what is new since the build was refused, and delete what was made without it.

    The extracted texts are kept where the input and what is done to it are as before.
    """
    before, now = ([(record.path, record.sha256) for record in records] for records in (earlier.inputs, inputs))
    if before == now and not loading.differences(earlier.config, config):
        return earlier
    is_read_alike = before == now and _reading(earlier.config) == _reading(config)
    kept = set(OF_TEXT) if is_read_alike else set()
    work = folder / "work"
    others = [folder / name for name in ("tokenizer", "documents", "instances")]
    for path in [*others, *work.glob("*"), *work.glob("records/*")]:
        if path.stem in kept or path == folder / REFUSED or (path.name == "records" and kept):
            continue
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    return BuildState(config, inputs, earlier.versions if is_read_alike else installed_versions())


def _reading(config: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a configuration that decides what step 1 makes of the input."""
    sources = [
        {key: value for key, value in source.items() if key not in ("name", "weight")} for source in config["sources"]
    ]
    return {"sources": sources} | {key: config[key] for key in ("clean", "max_bad_share", "language", "chunk_mib")}


@cache
def installed_version(name: str) -> str:
    """Return the version of a package."""
    return megabert.__version__ if name == "megabert" else version(name)  # megabert may run from a checkout


def installed_versions() -> dict[str, str]:
    """Return the versions of the packages that shape the shards."""
    return {name: installed_version(name) for name in sorted(PACKAGES)}


def require_versions(folder: Path, recorded: dict[str, str]) -> None:
    """Refuse to do units of a build with other packages than it was begun with.

    Args:
        folder: The build, for the error.
        recorded: Version of each package when the build was begun.

    Raises:
        DataError: A decisive package has another version; the message has the command that installs the recorded ones.
    """
    others = {name: was for name, was in recorded.items() if name in DECISIVE and was != installed_version(name)}
    if others:
        changes = ", ".join(f"{name} {was} (now {installed_version(name)})" for name, was in others.items())
        pins = " ".join(f"{name}=={was}" for name, was in others.items())
        raise DataError(
            f"{folder}: was begun with {changes}; its remaining units would not match those that are done. "
            f"Install the recorded versions to continue (pip install {pins}), or give --output a new folder."
        )


def require_folder(folder: Path) -> None:
    """Refuse to write where the folder of the build is not: it would be made anew, where nobody else looks for it.

    Raises:
        DataError: There is no ``build.json``.
    """
    if not (folder / STATE_NAME).is_file():
        raise DataError(
            f"{folder}: the folder of the build is gone or not mounted here ({STATE_NAME} is missing). Once its disk "
            "is there again, the same command continues with what is on it."
        )


def _compare_config(folder: Path, old: dict[str, Any], new: dict[str, Any]) -> None:
    differences = loading.differences(old, new)
    if differences:
        lines = "\n".join(f"  {path}: {before!r} there, {now!r} now" for path, (before, now) in differences.items())
        raise ConfigError(
            f"{folder}: was begun with another configuration:\n{lines}\n"
            "Give --output a new folder, or delete this one, or repeat the earlier settings to continue."
        )


def _hash_inputs(files: list[InputFile], executor: Executor) -> list[InputRecord]:
    """Return a record of each input file."""
    hashes = dict(executor.run(input_sha256, [file.path for file in files]))
    return [InputRecord(file.path, file.bytes, hashes[index]) for index, file in enumerate(files)]


def _compare_inputs(folder: Path, old: list[InputRecord], new: list[InputRecord]) -> None:
    # Compared by content: a file that was copied or touched is the same input.
    before, now = ({(record.path, record.sha256) for record in records} for records in (old, new))
    if before != now:
        changed = ", ".join(sorted({path for path, _ in before ^ now})[:5])
        raise DataError(
            f"{folder}: was begun with other input ({changed} changed, added or gone). "
            "Give --output a new folder, or restore the input to continue."
        )
