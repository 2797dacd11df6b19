"""What a build's folder remembers: its configuration and inputs; and that one build at a time writes there."""

import fcntl
import json
import os
import shutil
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from data_prep.config import BuildConfig
from data_prep.execution.executors import Executor
from data_prep.execution.versions import installed_versions
from data_prep.extract import InputFile
from data_prep.extract.opening import input_sha256, is_url, modified_ns
from megabert.config import loading
from megabert.errors import ConfigError, DataError
from megabert.schema import atomic_write, try_lock

STATE_NAME = "build.json"


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
    foreign = [name for name in names if name != ".lock" and not (name.startswith(".") and name.endswith(".tmp"))]
    if foreign and not (folder / STATE_NAME).is_file():
        raise DataError(f"{folder}: holds other files ({', '.join(sorted(foreign)[:3])}). Give --output a new folder.")
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "a+", encoding="utf-8") as stream:
        try:
            is_locked = try_lock(stream, fcntl.LOCK_EX)
        except BlockingIOError:
            stream.seek(0)
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
        _remove_remains(folder)
        yield


def _remove_remains(folder: Path) -> None:
    """Delete the temporary files and folders of a build that was killed; the lock says that nobody writes them."""
    for path in list(folder.rglob(".*.tmp")):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def remember(folder: Path, config: BuildConfig, files: list[InputFile], executor: Executor) -> dict[str, Any]:
    """Record configuration and inputs, or compare them with those of an earlier run.

    Returns:
        What is recorded.

    Raises:
        ConfigError: The configuration is another one.
        DataError: The inputs have changed.
    """
    path = folder / STATE_NAME
    known = json.loads(path.read_bytes()) if path.is_file() else {}
    if known:
        _compare_config(folder, known["config"], config.to_dict())
    inputs = _hash_inputs(files, known.get("inputs", []), executor)
    if known:
        _compare_inputs(folder, known["inputs"], inputs)
    known = known if known else {"config": config.to_dict(), "inputs": inputs, "versions": installed_versions()}
    known["inputs"] = inputs
    atomic_write(path, json.dumps(known, indent=1))
    return known


def _compare_config(folder: Path, old: dict[str, Any], new: dict[str, Any]) -> None:
    with suppress(ConfigError):  # fields that came later hold their defaults
        old = loading.build(BuildConfig, old).to_dict()
    found = loading.differences(old, new)
    if found:
        lines = "\n".join(f"  {path}: {before!r} there, {now!r} now" for path, (before, now) in found.items())
        raise ConfigError(
            f"{folder}: was begun with another configuration:\n{lines}\n"
            "Give --output a new folder, or delete this one, or repeat the earlier settings to continue."
        )


def _hash_inputs(files: list[InputFile], known: list[dict[str, Any]], executor: Executor) -> list[dict[str, Any]]:
    """Return path, size, time and SHA-256 of each input; a hash is taken over where size and time are as known."""
    before = {_stamp(item): item["sha256"] for item in known}
    inputs: list[dict[str, Any]] = [
        {"path": file.path, "bytes": file.bytes, "modified_ns": modified_ns(file.path)} for file in files
    ]
    new = [item for item in inputs if is_url(item["path"]) or _stamp(item) not in before]
    for index, digest in executor.run(input_sha256, [item["path"] for item in new]):
        new[index]["sha256"] = digest
    return [{"sha256": before.get(_stamp(item)), **item} for item in inputs]


def _stamp(item: dict[str, Any]) -> tuple[Any, ...]:
    return item["path"], item["bytes"], item["modified_ns"]


def _compare_inputs(folder: Path, old: list[dict[str, Any]], new: list[dict[str, Any]]) -> None:
    before, now = ({(item["path"], item["sha256"]) for item in items} for items in (old, new))
    if before != now:
        changed = ", ".join(sorted({path for path, _ in before ^ now})[:5])
        raise DataError(
            f"{folder}: was begun with other input ({changed} changed, added or gone). "
            "Give --output a new folder, or restore the input to continue."
        )
