"""Steps that make the folder of a case: sound material is copied, then damaged."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bad_input.harness import Step

DEEP = 100_000


def copy(*names: str) -> Step:
    """Copy parts of the sound material."""

    def step(folder: Path, material: Path) -> None:
        for name in names:
            source = material / name
            if source.is_dir():
                shutil.copytree(source, folder / name, symlinks=True)
            else:
                shutil.copy2(source, folder / name)

    return step


def write(name: str, content: str | bytes | Callable[[], str | bytes]) -> Step:
    """Write a file; what takes long to make is a function, which only the test calls."""

    def step(folder: Path, material: Path) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        made = content() if callable(content) else content
        path.write_bytes(made.encode() if isinstance(made, str) else made)

    return step


def make(function: Callable[[Path], None]) -> Step:
    """Call a function with the folder."""
    return lambda folder, material: function(folder)


def remove(pattern: str) -> Step:
    """Remove a file or folder."""

    def step(folder: Path, material: Path) -> None:
        path = only(folder, pattern)
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return step


def into_folder(pattern: str) -> Step:
    """Put a folder where a file was."""

    def step(folder: Path, material: Path) -> None:
        path = only(folder, pattern)
        path.unlink()
        path.mkdir()

    return step


def change(pattern: str, how: Callable[[bytes], bytes]) -> Step:
    """Change a file's bytes."""

    def step(folder: Path, material: Path) -> None:
        path = only(folder, pattern)
        path.write_bytes(how(path.read_bytes()))

    return step


def set_json(pattern: str, key: str, value: Any) -> Step:
    """Set a key of a JSON file; ``a.b.0`` is a path through objects and lists."""

    def how(content: bytes) -> bytes:
        document = json.loads(content)
        *path, last = [int(word) if word.isdigit() else word for word in key.split(".")]
        inner = document
        for word in path:
            inner = inner[word]
        inner[last] = value
        return json.dumps(document).encode()

    return change(pattern, how)


def link(name: str, target: str) -> Step:
    """Make a symbolic link."""
    return make(lambda folder: os.symlink(target, folder / name))


def only(folder: Path, pattern: str) -> Path:
    """Return the first path that a pattern names."""
    paths = sorted(folder.glob(pattern))
    assert paths, f"{folder} has no {pattern}"
    return paths[0]


def nested(depth: int = DEEP) -> bytes:
    """Return JSON lists in lists."""
    return b"[" * depth + b"]" * depth


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "cut": lambda content: content[: len(content) // 2],
    "prose": lambda content: b"There is no JSON here.\n",
    "list": lambda content: b"[]",
    "null": lambda content: b"null",
    "number": lambda content: b"7",
    "deep": lambda content: nested(),
    "bytes": lambda content: b"\xff\xfe\x00" + content,
    "empty object": lambda content: b"{}",
    "huge number": lambda content: b'{"step": ' + b"9" * 5000 + b"}",
    "words for numbers": lambda content: retyped(content, lambda value: str(value) if type(value) is int else value),
    "numbers for words": lambda content: retyped(content, lambda value: 3 if isinstance(value, str) else value),
    "nulls": lambda content: retyped(content, lambda value: None),
}
"""What happens to JSON files, by name."""


def retyped(content: bytes, how: Callable[[Any], Any]) -> bytes:
    """Change every leaf of a JSON document, or of each line of JSON lines."""
    if content.count(b"\n{") > 0:
        return b"\n".join(retyped(line, how) if line else line for line in content.splitlines()) + b"\n"

    def walk(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: walk(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [walk(inner) for inner in value]
        return how(value)

    return json.dumps(walk(json.loads(content))).encode()
