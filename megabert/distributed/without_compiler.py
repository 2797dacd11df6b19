"""DeepSpeed without torch's compiler, which it would load at every start and never use.

Nothing here is compiled by ``torch.compile``; docs/decisions.md says why. DeepSpeed marks functions for the compiler
nevertheless, and marking the first one imports it: 1.3 CPU seconds, and with its backends 2.3.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import torch


def _unmarked(function: Callable[..., Any], *_: Any, **__: Any) -> Callable[..., Any]:
    """Return a function as it is, where a decorator of the compiler would wrap it."""
    return function


@contextlib.contextmanager
def without_compiler() -> Iterator[None]:
    """Let the compiler's decorators return functions as they are, while DeepSpeed is imported or initialized.

    They are on three functions of its optimizer Muon, whose file every ZeRO stage imports to ask whether an optimizer
    is one, and on what ZeRO-3 runs before and after each module.
    """
    with (
        patch.object(torch, "compile", _unmarked),
        patch.object(torch, "_disable_dynamo", _unmarked),
        patch.object(torch.compiler, "disable", _unmarked),
    ):
        yield
