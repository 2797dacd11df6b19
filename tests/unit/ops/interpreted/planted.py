"""Runs a kernel, or a device function, with another text than its own in Triton's interpreter."""

import contextlib
import inspect
from collections.abc import Iterator

from triton.runtime.interpreter import InterpretedFunction


def name_of(function: InterpretedFunction) -> str:
    """Return a function's name with its module, as ``<megabert.ops.lamb.triton:lamb_apply>``."""
    return f"<{function.fn.__module__}:{function.fn.__name__}>"


def text_of(function: InterpretedFunction) -> str:
    """Return the text of a function that is interpreted, from its ``def`` on."""
    lines, _ = inspect.getsourcelines(function.fn)
    begin = next(number for number, line in enumerate(lines) if line.startswith("def "))
    return "".join(lines[begin:])


@contextlib.contextmanager
def planted(function: InterpretedFunction, text: str) -> Iterator[None]:
    """Interpret ``text`` in place of a function; its lines count from 1, in a file of the function's ``name_of``."""
    before, rewriter = function.rewrite(), function.rewriter
    rewriter.filename, rewriter.def_file_lineno = name_of(function), 1
    rewritten = rewriter._compile_and_exec(rewriter._transform_ast(text))
    InterpretedFunction.rewritten_fn[function.fn] = rewritten
    yield
    InterpretedFunction.rewritten_fn[function.fn] = before
