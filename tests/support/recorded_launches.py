"""Launches of Triton kernels on meta tensors: a step goes through all its code, no kernel runs, no GPU is needed."""

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from triton.runtime.jit import JITFunction

from megabert.ops import backend
from megabert.ops.triton_support import tile_sizes

META = torch.device("meta")
MULTIPROCESSORS = 132
"""Those of an H100 and an H200."""


@contextlib.contextmanager
def recording() -> Iterator[set[tuple]]:
    """Yield the set of variants that are launched: kernel, dtypes of its tensors (None if absent), constants."""
    variants = set()

    def run(kernel, *arguments, grid, warmup, **options):
        # Without a tensor (None) a kernel is another variant, whose code for it is left out.
        dtypes = tuple(
            argument.dtype if isinstance(argument, torch.Tensor) else None
            for argument in arguments
            if argument is None or isinstance(argument, torch.Tensor)
        )
        variants.add((kernel.fn.__name__, dtypes, tuple(sorted(options.items()))))

    def forget() -> None:
        tile_sizes.multiprocessors_of.cache_clear()
        backend.choose.cache_clear()

    forget()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JITFunction, "run", run)
        # Triton may be chosen as it may in the interpreter; kernels are those of a GPU all the same.
        patch.setattr(backend, "os", SimpleNamespace(environ={"TRITON_INTERPRET": "1"}))
        patch.setattr(tile_sizes, "ASSUMED_MULTIPROCESSORS", MULTIPROCESSORS)
        yield variants
    forget()
