"""JSON texts that carry a SHA-256 of themselves: manifests of checkpoints, and the state, plan and records of a build.

A build or a run that continues trusts these texts, and a count that was changed would give other shards. So each text
begins with a hash of the rest and of a *context*: for a build the step, the input and the configuration that it belongs
to. A text that was edited or damaged, or that another build wrote, does not fit its hash.
"""

import hashlib
import json
from typing import Any, TypeVar

from megabert.foundation.errors import DataError, MegabertError
from megabert.foundation.json_files import parse_json

_BEGIN, _END = b'{"sha256": "', b'", '
Content = TypeVar("Content")
START = len(_BEGIN) + 64 + len(_END)
"""Where the content of a sealed text begins; the brace before its first key is at the very start."""


def seal(content: dict[str, Any], context: str, *, indent: int | None = None) -> bytes:
    """Return JSON text whose first key is a hash of all others and of the context."""
    rest = json.dumps(content, indent=indent).encode()[1:]
    return _BEGIN + _digest(rest, context) + _END + rest


def unseal(
    text: bytes,
    cls: type[Content],
    context: str,
    *,
    where: str,
    remedy: str,
    error: type[MegabertError] = DataError,
) -> Content:
    """Return the content, its types checked as `megabert.foundation.json_files.read_json` does.

    Raises:
        MegabertError: An ``error``: the hash does not fit, or the content is of another type.
    """
    rest = text.rstrip(b"\n")[START:]
    if text[:START] != _BEGIN + _digest(rest, context) + _END:
        raise error(f"{where}: damaged or edited (its SHA-256 does not fit). {remedy}")
    return parse_json(b"{" + rest, cls, where=where, remedy=remedy, error=error)


def _digest(rest: bytes, context: str) -> bytes:
    return hashlib.sha256(context.encode() + b"\0" + rest).hexdigest().encode()
