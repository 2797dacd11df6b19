"""Arguments of the library and of the commands: one table of values for both, and a look before a function runs."""

import inspect
import operator
import os
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import cache, wraps
from os import PathLike
from pathlib import Path
from types import UnionType
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from megabert.foundation.errors import ConfigError
from megabert.settings.command_line.failures import as_user_error

Device = Literal["auto", "cpu", "cuda"]
"""``auto`` takes a GPU if there is one."""
CopyMask = Literal["within-word", "token"]
"""The masks of a copy: on the piece and the pieces of its word to the right of it, or on the piece alone."""
VectorPooling = Literal["cls", "mean"]
"""The vector of a text: the last hidden state of [CLS], or the mean over all tokens, [CLS] and [SEP] included."""
Pooling = Literal[VectorPooling, "tokens"]
"""The same, or the vectors of all tokens."""

P = ParamSpec("P")
R = TypeVar("R")


def checks_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Check the arguments of a function by their annotations before it runs.

    A ``Literal`` is a choice, an ``int`` a number of 1 or more, a ``bool`` True or False, ``str`` a text, and
    ``str | Path`` a path. ``Sequence[str]`` accepts any sequence, array or generator of texts, and the function gets a
    list. Other types are the function's own concern. A ConfigError names the argument, in a list the index. An OSError
    of the function becomes the error that a command shows.
    """
    signature, hints = inspect.signature(function), cache(lambda: get_type_hints(function))

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        bound = signature.bind(*args, **kwargs)
        for name, value in bound.arguments.items():
            bound.arguments[name] = _look(name, value, hints().get(name))
        try:
            return function(*bound.args, **bound.kwargs)
        except OSError as error:
            raise as_user_error(error) or error from error

    return call


def _look(name: str, value: Any, kind: Any) -> Any:
    """Return an argument as its function gets it."""
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    # Of a class that the annotation names as well, and None if that is one.
    if any(isinstance(one, type) and one not in (*_CHECKS, Path, Any) and isinstance(value, one) for one in kinds):
        return value
    check = _path if Path in kinds else _CHECKS.get(get_origin(kinds[0]) or kinds[0])
    return value if check is None else check(name, value, kinds[0])


def _shown(name: str, value: Any) -> str:
    return f"{name}={value!r:.60} ({type(value).__name__})"


def _text(name: str, value: Any, _: Any = None) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{_shown(name, value)} is no text. Give a str; fill gaps in a column, and decode bytes.")
    return str(value)  # of numpy's strings, too


def _texts(name: str, value: Any, _: Any) -> list[str]:
    if isinstance(value, str):
        raise ConfigError(f"{value!r:.60} is one text. Give a list of texts.")
    # The order of a set is no order, and bytes and mappings would give numbers and keys.
    if not isinstance(value, Iterable) or isinstance(value, bytes | Mapping | Set) or not getattr(value, "shape", 1):
        raise ConfigError(f"{_shown(name, value)} is no list of texts. Give a list, an array or a generator of str.")
    return [_text(f"{name}[{index}]", text) for index, text in enumerate(value)]


def _count(name: str, value: Any, _: Any) -> int:
    try:
        count = 0 if isinstance(value, bool) else operator.index(value)
    except TypeError:  # classes and arrays have the method, too
        count = 0
    if count < 1:
        raise ConfigError(f"{_shown(name, value)} is no whole number of 1 or more. Give one.")
    return count


def _switch(name: str, value: Any, _: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{_shown(name, value)} is neither True nor False. Give one.")
    return value


def _choice(name: str, value: Any, kind: Any) -> Any:
    if not isinstance(value, str) or value not in get_args(kind):
        raise ConfigError(f"{_shown(name, value)} is not known. Give one of: {', '.join(get_args(kind))}.")
    return value


def _path(name: str, value: Any, _: Any) -> Any:
    try:
        is_path = isinstance(value, str | PathLike) and b"\0" not in (os.fsencode(value) or b"\0")
    except UnicodeEncodeError:  # half of a surrogate pair
        is_path = False
    if not is_path:
        raise ConfigError(f"{_shown(name, value)} is no path. Name a file or folder; . is the working folder.")
    return value


_CHECKS: dict[Any, Callable[[str, Any, Any], Any]] = {
    str: _text,
    int: _count,
    bool: _switch,
    Literal: _choice,
    Sequence: _texts,
}
"""The check of each kind of annotation."""
