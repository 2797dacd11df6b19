"""The state of a build in its folder, so that the same command continues it and no other one spoils it.

``build.json`` holds the configuration, the inputs with their hashes, and the versions of the packages. Every start
hashes the inputs again: a file that was replaced may have the size and the time of the one before it. A lock lets one
build at a time write into the folder.
"""

import fcntl
import hashlib
import json
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import megabert
from data_prep.config.build import BuildConfig
from data_prep.execution import changes
from data_prep.execution.changes import Part
from data_prep.identification.identifier import package_of
from megabert.foundation import files
from megabert.foundation.errors import ConfigError, DataError, HaltedError, MegabertError
from megabert.foundation.json_files import seal, unseal
from megabert.settings.config import extensions, loading

STATE_NAME = "build.json"
STATE_REMEDY = (
    "Finished shards can be trained on without this file; to go on with the build, copy it back, or give --output "
    "a new folder."
)
MAX_STATE_BYTES = 1 << 32
"""Bytes that this file may have: it has a few lines for each input file, of which there may be millions."""
REFUSED = Path("work", "refused")
"""File that is there while the last run's corpus was refused."""
PACKAGES = ("megabert", "sentencex", "tokenizers", "numpy", "pyarrow")
"""Packages that every build records; one that identifies languages, or trains a Unigram vocabulary, records its own."""
HARMLESS = {"numpy", "pyarrow"}
"""Other versions of these cut and number text alike; of all others, packages with cleaning rules included, they may
not.
"""


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

    before: str = ""
    """While documents of earlier settings wait to be split again: the digest that seals their plan and records."""

    def sha256_of(self, path: str | None) -> str:
        """Return the hash of an input; "" if it is none."""
        return next((record.sha256 for record in self.inputs if record.path == path), "")

    @cached_property
    def digests(self) -> dict[str, str]:
        """Hash of the input and of the settings that each step depends on, so that steps of two builds are told
        apart.
        """
        inputs = [(record.path, record.sha256) for record in self.inputs]
        settings = {name: changes.settings_of(self.config, step.part) for name, step in changes.STEPS.items()}
        for length in self.config["lengths"]:
            settings[f"instances-{length}"] = changes.shard_settings_of(self.config, length)
        texts = {step: json.dumps([own, inputs], sort_keys=True) for step, own in settings.items()}
        return {step: hashlib.sha256(text.encode()).hexdigest() for step, text in texts.items()}

    def context(self, step: str, digest: str | None = None) -> str:
        """Return the context of a step's seals; with a digest, of the same step under earlier settings."""
        return f"{step} of {self.digests[step] if digest is None else digest}"


FOLDERS = ("work", "work/*", "documents", "tokenizer", "instances", "instances/*", "instances/*/tokenizer")
"""Folders of a build."""
TEMPORARIES = ("**/.*.tmp", "**/.*.tmp.old")
"""Temporary files and folders of one that was killed; the lock says that nobody writes them."""


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
    foreign = [name for name in names if name != ".lock" and not files.is_temporary(Path(name))]
    if foreign and not (folder / STATE_NAME).is_file():
        raise DataError(f"{folder}: holds other files ({', '.join(sorted(foreign)[:3])}). Give --output a new folder.")
    folder.mkdir(parents=True, exist_ok=True)
    files.refuse_linked_folders(folder, FOLDERS)
    # The file keeps its content until the lock is ours, so that its holder can be named.
    with files.open_lock(folder / ".lock") as stream:
        try:
            is_locked = files.try_lock(stream, fcntl.LOCK_EX)
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
        files.remove_killed_writes(folder, TEMPORARIES)
        try:
            yield
        except KeyboardInterrupt:  # the workers were killed in the middle of their files
            files.remove_killed_writes(folder, TEMPORARIES)
            raise


def remember(folder: Path, config: BuildConfig, earlier: BuildState | None, inputs: list[InputRecord]) -> BuildState:
    """Record configuration and inputs; if they have changed, delete everything that depends on them.

    Args:
        folder: The build.
        config: Its configuration; `require_possible_change` allows it.
        earlier: The result of `read_state`.
        inputs: All input files.

    Returns:
        The new record.

    Raises:
        DataError: The inputs have changed.
    """
    now = config.recorded()
    if earlier is None:
        state = BuildState(now, inputs, installed_versions(config))
    else:
        if not (folder / REFUSED).exists():
            _require_input_as_before(folder, earlier.inputs, inputs)
        state = _change(folder, earlier, now, inputs, installed_versions(config))
    if state != earlier:
        write_state(folder, state)
    (folder / REFUSED).unlink(missing_ok=True)
    return state


def _change(
    folder: Path, earlier: BuildState, config: dict[str, Any], inputs: list[InputRecord], versions: dict[str, str]
) -> BuildState:
    """Return the state under other settings, or after a refusal with another input; what depends on them is deleted."""
    first = Part.TEXT if other_inputs(earlier.inputs, inputs) else changes.first_changed(earlier.config, config)
    if first is None:
        return earlier
    before = earlier.before if first >= Part.DOCUMENTS else ""
    if before:
        changes.set_aside(folder)
    elif first is Part.DOCUMENTS and _is_planned(folder, earlier):
        before = earlier.digests["documents"]
    changes.make_way(folder, first, earlier.config, config, keeps_documents=bool(before) and not earlier.before)
    if first is not Part.TEXT:  # another kind of vocabulary may need a package that was not recorded
        versions = {name: earlier.versions.get(name, now) for name, now in versions.items()}
    return BuildState(config, inputs, versions, before)


def _is_planned(folder: Path, state: BuildState) -> bool:
    """Whether steps 1 to 5 were done, after which the text is deleted, and are not done again."""
    if state.before or (folder / REFUSED).exists():
        return False
    with suppress(DataError, OSError):
        unseal(files.read_small(folder / changes.PLAN_NAME), dict[str, Any], state.context("plan"), where="", remedy="")
        return True
    return False


def write_state(folder: Path, state: BuildState) -> None:
    """Write ``build.json``."""
    files.atomic_write(folder / STATE_NAME, seal(asdict(state), STATE_NAME, indent=1))


def read_state(folder: Path) -> BuildState | None:
    """Return the record of an earlier run; None if there was none.

    Raises:
        DataError: It is damaged.
        ConfigError: A package that it was begun with is not installed.
    """
    path = folder / STATE_NAME
    if not path.exists():
        return None
    text = files.read_small(path, most=MAX_STATE_BYTES)
    state = unseal(text, BuildState, STATE_NAME, where=str(path), remedy=STATE_REMEDY)
    for name, was in state.versions.items():
        if version_of(name) == "missing":  # the settings may name a rule of it
            extensions.require_package(f"{name} {was}", str(folder))
    with suppress(ConfigError):
        if loading.to_dict(loading.merge_layers(BuildConfig, state.config)) == state.config:
            return state
    raise DataError(f"{path}: damaged or edited (its configuration is not one of this megabert). {STATE_REMEDY}")


@contextmanager
def refusal_noted(folder: Path) -> Iterator[None]:
    """Note it in the folder if the corpus is refused: the next command may then have other settings or other input."""
    try:
        yield
    except MegabertError as error:
        with suppress(OSError):
            if folder.is_dir() and not isinstance(error, HaltedError):  # else the machine failed
                os.close(files.open_in_place(folder / REFUSED, os.O_WRONLY))
        raise


@cache
def version_of(name: str) -> str:
    """Return the version of a package; "missing" if it is not installed, as may be of one that a few builds need."""
    if name == "megabert":  # which may run from a checkout
        return megabert.__version__
    return extensions.installed_version(name) or "missing"


def installed_versions(config: BuildConfig) -> dict[str, str]:
    """Return the versions of the packages that shape the shards of a build."""
    trainer = "sentencepiece" if config.pieces == "unigram" and config.tokenizer is None else None
    rules = [package.rpartition(" ")[0] for _, package in config.clean.rules_of_packages().values()]
    more = [name for name in (package_of(config), trainer, *rules) if name]
    return {name: version_of(name) for name in sorted({*PACKAGES, *more})}


def require_versions(folder: Path, recorded: dict[str, str]) -> None:
    """Refuse to do units of a build with other packages than it was begun with.

    Args:
        folder: The build, for the error.
        recorded: Version of each package when the build was begun.

    Raises:
        HaltedError: A decisive package has another version; the message has the command that installs the recorded.
    """
    decisive = recorded.keys() - HARMLESS
    others = {name: recorded[name] for name in sorted(decisive) if recorded[name] != version_of(name)}
    if others:
        now = ", ".join(f"{name} {was} (now {version_of(name)})" for name, was in others.items())
        pins = " ".join(f"{name}=={was}" for name, was in others.items())
        raise HaltedError(
            f"{folder}: was begun with {now}; its remaining units would not match the finished ones. "
            f"Install the recorded versions to continue (pip install {pins}), or give --output a new folder."
        )


def require_folder(folder: Path) -> None:
    """Refuse to write if the folder of the build is gone: it would be made anew, on a disk that nobody else reads.

    Raises:
        HaltedError: There is no ``build.json``.
    """
    if not (folder / STATE_NAME).is_file():
        raise HaltedError(
            f"{folder}: the folder of the build is gone or not mounted here ({STATE_NAME} is missing). Once its disk "
            "is there again, the same command continues from there."
        )


def require_possible_change(folder: Path, earlier: BuildState, new: dict[str, Any]) -> None:
    """Refuse another configuration that this folder cannot be built on with.

    After a refusal of the corpus nothing was made yet, and any change is allowed.

    Raises:
        ConfigError: It changes the text or the vocabulary, which all else is made from, or splits documents again that
            are stored by weight.
    """
    first = changes.first_changed(earlier.config, new)
    if first is Part.DOCUMENTS and _is_planned(folder, earlier):
        changes.require_plain_documents(folder, earlier.config)
    if first in (Part.TEXT, Part.VOCABULARY) and not (folder / REFUSED).exists():
        lines = "\n".join(f"  {line}" for line in describe_changes(earlier.config, new))
        raise ConfigError(
            f"{folder}: was begun with another configuration, and its text is deleted or was read in another way:\n"
            f"{lines}\nGive --output a new folder, or delete this one, or repeat the earlier settings to continue. "
            "Settings of later steps may change here, such as --lengths, --dupe-factor or --validation-share."
        )


def describe_repeats(old: dict[str, Any], new: dict[str, Any], inputs: str = "") -> str | None:
    """Return a line on the changes, `inputs` among them, and the parts that are kept and repeated; None without any."""
    first, parts = Part.TEXT if inputs else changes.first_changed(old, new), [part.name.lower() for part in Part]
    if first is None:
        return None
    lines = "; ".join([*describe_changes(old, new), *([f"input ({inputs})"] if inputs else [])])
    kept, repeated = ", ".join(parts[: first - 1]) or "nothing", ", ".join(parts[first - 1 :])
    return f"changed: {lines}. Kept: {kept}. Repeated: {repeated}"


def describe_changes(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Return a line for each setting that differs."""
    pairs = {name: (old[name], value) for name, value in new.items() if old[name] != value}
    for name in pairs.keys() & {"sources", "clean"}:  # what differs in these
        before, now = pairs.pop(name)
        pairs |= loading.differences({name: before}, {name: now})
    return [f"{path}: {before!r} there, {now!r} now" for path, (before, now) in pairs.items()]


def _contents(records: list[InputRecord]) -> set[tuple[str, str]]:
    """Return what inputs are compared by: a file that was copied or touched is the same input."""
    return {(record.path, record.sha256) for record in records}


def other_inputs(old: list[InputRecord], new: list[InputRecord]) -> str:
    """Return which files are not as they were, the first few of them; "" if all are."""
    names = sorted({path for path, _ in _contents(old) ^ _contents(new)})
    return f"{', '.join(names[:5])} changed, added or gone" if names else ""


def _require_input_as_before(folder: Path, old: list[InputRecord], new: list[InputRecord]) -> None:
    if others := other_inputs(old, new):
        raise DataError(
            f"{folder}: was begun with other input ({others}). "
            "Give --output a new folder, or restore the input to continue."
        )
