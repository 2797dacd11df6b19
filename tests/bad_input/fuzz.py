"""Mutations of sound files, by bytes and by structure, and what reads the files.

Each mutation follows from a seed, so a failure repeats: its name is the format's, the mutation's and the seed.
"""

import json
import random
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from bad_input.harness import CommandServer, Outcome, common_problems

MAX_SECONDS = 60
MAX_BYTES = 2 << 30
WRONG_TYPES: tuple[Any, ...] = (None, True, -1, 1e308, 10**30, "", "text", "\x1b[2J", [], {}, [[]], float("nan"))

Mutation = Callable[[bytes, random.Random], bytes]


def truncate(content: bytes, chance: random.Random) -> bytes:
    """Cut a file anywhere."""
    return content[: chance.randrange(len(content))]


def flip(content: bytes, chance: random.Random) -> bytes:
    """Flip one to eight bits."""
    changed = bytearray(content)
    for _ in range(chance.randint(1, 8)):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def overwrite(content: bytes, chance: random.Random) -> bytes:
    """Replace a run of bytes by noise."""
    start = chance.randrange(len(content))
    count = min(chance.randint(1, 64), len(content) - start)
    return content[:start] + chance.randbytes(count) + content[start + count :]


def repeat(content: bytes, chance: random.Random) -> bytes:
    """Repeat a part, up to fifty times."""
    start = chance.randrange(len(content))
    end = min(len(content), start + chance.randint(1, 4096))
    return content[:end] + content[start:end] * chance.randint(1, 50) + content[end:]


def swap(content: bytes, chance: random.Random) -> bytes:
    """Let two parts change places."""
    a, b, c = sorted(chance.randrange(len(content) + 1) for _ in range(3))
    return content[:a] + content[b:c] + content[a:b] + content[c:]


def deepen_bytes(content: bytes, chance: random.Random) -> bytes:
    """Put brackets in brackets somewhere."""
    place, depth = chance.randrange(len(content)), 10 ** chance.randint(1, 5)
    opening, closing = chance.choice([(b"[", b"]"), (b'{"a":', b"}"), (b"{{", b"}}"), (b"<a>", b"</a>")])
    return content[:place] + opening * depth + b"1" + closing * depth + content[place:]


def retype(content: bytes, chance: random.Random) -> bytes:
    """Replace a value of a JSON document by one of another type."""
    return _changed_json(content, chance, lambda holder, key: holder.__setitem__(key, chance.choice(WRONG_TYPES)))


def drop(content: bytes, chance: random.Random) -> bytes:
    """Leave out a value of a JSON document."""
    return _changed_json(content, chance, lambda holder, key: holder.pop(key))


def deepen(content: bytes, chance: random.Random) -> bytes:
    """Wrap a value of a JSON document in lists."""

    def wrap(holder: Any, key: Any) -> None:
        for _ in range(chance.choice([1, 2, 100, 400])):
            holder[key] = [holder[key]]

    return _changed_json(content, chance, wrap)


def multiply(content: bytes, chance: random.Random) -> bytes:
    """Repeat a value of a JSON document under other keys, or in its list."""

    def more(holder: Any, key: Any) -> None:
        if isinstance(holder, list):
            holder.extend([holder[key]] * 100)
        else:
            holder.update({f"{key}{i}": holder[key] for i in range(100)})

    return _changed_json(content, chance, more)


def _changed_json(content: bytes, chance: random.Random, how: Callable[[Any, Any], object]) -> bytes:
    lines = content.splitlines() if content.count(b"\n{") else [content]
    number = chance.choice([number for number, line in enumerate(lines) if line])
    document = json.loads(lines[number])
    places = list(_places(document))
    if places:
        how(*chance.choice(places))
    lines[number] = json.dumps(document).encode()
    return b"\n".join(lines) + b"\n"


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Return every holder and key of a JSON document."""
    keys = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    return [(value, key) for key in keys] + [place for key in keys[:200] for place in _places(value[key])]


BYTES: tuple[Mutation, ...] = (truncate, flip, overwrite, repeat, swap, deepen_bytes)
STRUCTURE: tuple[Mutation, ...] = (retype, drop, deepen, multiply)


class Format(NamedTuple):
    """A file that is mutated, and the command that reads it."""

    name: str
    file: str
    command: str
    needs: tuple[str, ...]
    is_json: bool = False
    vouched: bool = False
    """Whether a recorded SHA-256 covers every byte: then nothing that differs may be accepted."""
    removed: tuple[str, ...] = ()
    """Patterns of what is removed before, so that the command has to read the file."""

    def mutation(self, number: int) -> Mutation:
        """Return the kind that has its turn."""
        kinds = BYTES + STRUCTURE if self.is_json else BYTES
        return kinds[number % len(kinds)]


class Mutated(NamedTuple):
    """One mutated file and what came of it."""

    name: str
    outcome: Outcome
    problems: list[str]


def run_mutations(
    form: Format, numbers: Iterable[int], seed: int, server: CommandServer, material: Path, scratch: Path
) -> list[Mutated]:
    """Mutate a file in several ways, run the command that reads it on each, and judge.

    Args:
        form: What is mutated.
        numbers: Which mutations; every kind takes its turn.
        seed: Changes what all mutations do.
        server: Runs the command.
        material: Sound folders and files.
        scratch: Folder for these mutations alone.

    Returns:
        What came of each; mutations that changed nothing are left out.
    """
    made = [number for number in numbers if _mutate(form, number, seed, material, scratch / f"{number}")]
    folders = [(scratch / f"{number}" / "case", scratch / f"{number}" / "output") for number in made]
    outcomes = server.run_many(form.command, folders, timeout_s=MAX_SECONDS, memory_bytes=MAX_BYTES)
    return [
        Mutated(f"{form.name}, {form.mutation(number).__name__}, number {number}, seed {seed}", outcome, problems)
        for number, outcome in zip(made, outcomes, strict=True)
        for problems in [_problems_of(form, outcome)]
    ]


def _mutate(form: Format, number: int, seed: int, material: Path, scratch: Path) -> bool:
    """Copy the material that the command needs, with the file mutated; return whether it differs."""
    folder = scratch / "case"
    folder.mkdir(parents=True)
    for name in form.needs:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if (material / name).is_dir():
            shutil.copytree(material / name, folder / name, symlinks=True)
        else:
            shutil.copy2(material / name, folder / name)
    for pattern in form.removed:
        for path in folder.glob(pattern):
            path.unlink()
    path = next(iter(sorted(folder.glob(form.file))))
    sound = path.read_bytes()
    mutated = form.mutation(number)(sound, random.Random(f"{form.name} {number} {seed}"))
    path.write_bytes(mutated)
    return mutated != sound


def _problems_of(form: Format, outcome: Outcome) -> list[str]:
    problems = list(common_problems(outcome))
    if outcome.code == 0 and form.vouched:
        problems.append("accepted, though its SHA-256 differs")
    if outcome.code not in (0, 2, 3, 4, 6):
        problems.append(f"exit code {outcome.code}")
    return problems
