"""Functions that take a path take a str as well, so that a caller in Python need not know which of the two is meant."""

from collections.abc import Callable
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def takes_paths(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Let a function take a str for each of its parameters that is a ``Path``, for callers in Python."""
    parameters = signature(function)
    names = [name for name, one in parameters.parameters.items() if "Path" in str(one.annotation)]

    @wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        given = parameters.bind(*args, **kwargs)
        for name in names:
            if isinstance(given.arguments.get(name), str):
                given.arguments[name] = Path(given.arguments[name])
        return function(*given.args, **given.kwargs)

    return call
