"""Mutations of sound files, by bytes and by structure.

Each mutation follows from a seed, so a failure repeats: its name is the format's, the mutation's and the seed.
"""

import json
import random
from collections.abc import Callable
from typing import Any

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
