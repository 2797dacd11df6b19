"""Traces every launch of Triton's interpreter by address: what would be a race on a GPU, or memory of nobody's.

The interpreter runs the programs of a launch one after another, and each program as if it had one thread. A GPU does
neither: programs run side by side, and so do a program's threads between two barriers.
"""

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import torch
import triton.language as tl
from numpy.typing import NDArray
from triton._C.libtriton.ir import ATOMIC_OP
from triton.runtime.interpreter import GridExecutor, InterpretedFunction, InterpreterBuilder

Addresses = NDArray[np.uint64]
OUTSIDE = "outside of the launch's tensors"
TWO_WRITERS = "written by two programs"
FOREIGN_READ = "read by one program and written by another"
NO_BARRIER = "read without a barrier since the same program wrote it"
WRITTEN_TWICE = "written twice by a program without a barrier between"


class Trace:
    """What the launches of some kernels have done, and the faults found in them."""

    def __init__(self) -> None:
        self.functions: set[str] = set()
        """Every kernel launched and every device function called."""
        self.faults: dict[str, Counter[str]] = {}
        """For each kernel, how many accesses have which fault."""

    def begin(self, kernel: str, tensors: list[torch.Tensor]) -> None:
        """Begin a launch that may use the storages of some tensors."""
        self._counts = self.faults.setdefault(kernel, Counter())
        storages = [tensor.untyped_storage() for tensor in tensors]
        self._spans = sorted((storage.data_ptr(), storage.data_ptr() + storage.nbytes()) for storage in storages)
        self._program: Any = None
        self._number = 0
        self._reads: list[tuple[Addresses, int]] = []
        self._writes: list[tuple[Addresses, int]] = []

    def read(self, program: Any, addresses: Addresses) -> None:
        """Note what a program loads."""
        self._enter(program)
        self._reads.append((addresses, self._number))
        self._count(NO_BARRIER, self._among_new(addresses))

    def write(self, program: Any, addresses: Addresses) -> None:
        """Note what a program stores."""
        self._enter(program)
        self._count(WRITTEN_TWICE, len(addresses) - len(np.unique(addresses)) + self._among_new(addresses))
        self._writes.append((addresses, self._number))
        if len(addresses):
            self._new.append((addresses.min(), addresses.max(), addresses))

    def barrier(self) -> None:
        """Note that the threads of a program have waited for each other."""
        self._new = []

    def end(self) -> None:
        """Hold the programs of the launch against each other."""
        written, writers = _joined(self._writes)
        read, readers = _joined(self._reads)
        self._count(OUTSIDE, self._number_outside(written) + self._number_outside(read))
        if not len(written):
            return
        order = np.argsort(written, kind="stable")
        written, writers = written[order], writers[order]
        self._count(TWO_WRITERS, ((written[1:] == written[:-1]) & (writers[1:] != writers[:-1])).sum())
        # Of equal addresses the last is taken: if their writers differ, that is a fault already.
        place = (np.searchsorted(written, read, side="right") - 1).clip(0)
        self._count(FOREIGN_READ, ((written[place] == read) & (writers[place] != readers)).sum())

    def _enter(self, program: Any) -> None:
        if program != self._program:
            self._program, self._number, self._new = program, self._number + 1, []

    def _number_outside(self, addresses: Addresses) -> int:
        begins, ends = (np.array(ends, dtype=np.uint64) for ends in zip((0, 0), *self._spans, strict=True))
        place = np.searchsorted(begins, addresses, side="right") - 1
        return int((addresses >= ends[place]).sum())

    def _among_new(self, addresses: Addresses) -> int:
        if not len(addresses):
            return 0
        first, last = addresses.min(), addresses.max()
        near = [written for begin, end, written in self._new if begin <= last and first <= end]
        return sum(int(np.isin(addresses, written).sum()) for written in near)

    def _count(self, fault: str, number: int) -> None:
        if number:
            self._counts[fault] += int(number)


def _joined(accesses: list[tuple[Addresses, int]]) -> tuple[Addresses, NDArray[np.int64]]:
    """Return the addresses of some accesses, and the program of each."""
    programs = np.repeat([number for _, number in accesses], [len(addresses) for addresses, _ in accesses])
    return np.concatenate([np.empty(0, dtype=np.uint64), *(addresses for addresses, _ in accesses)]), programs


@contextlib.contextmanager
def tracing() -> Iterator[Trace]:
    """Trace every launch inside."""
    trace = Trace()
    traced = ("create_masked_load", "create_masked_store", "create_atomic_rmw")
    originals = {name: getattr(InterpreterBuilder, name) for name in traced}
    launch, arguments_of, call = GridExecutor.__call__, GridExecutor._init_args_hst, InterpretedFunction.__call__

    def launched(executor: Any, *arguments: Any, **options: Any) -> None:
        trace.functions.add(executor.fn.__name__)
        launch(executor, *arguments, **options)
        trace.end()

    def arguments(executor: Any, *given: Any) -> Any:
        positional, named = arguments_of(executor, *given)  # these are the tensors that the launch works on
        tensors = [value for value in (*positional, *named.values()) if isinstance(value, torch.Tensor)]
        trace.begin(executor.fn.__name__, tensors)
        return positional, named

    def called(function: Any, *arguments: Any, **options: Any) -> Any:
        trace.functions.add(function.fn.__name__)
        if tl.core.is_builtin(tl.core.load):
            return call(function, *arguments, **options)
        # Triton's own call would patch the whole language once more, a quarter of the time, and its core stays patched.
        return function.rewrite()(*arguments, **options)

    def load(builder: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
        trace.read(builder.grid_idx, _addresses(pointers, mask))
        return originals["create_masked_load"](builder, pointers, mask, *rest)

    def store(builder: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        trace.write(builder.grid_idx, _addresses(pointers, mask))
        return originals["create_masked_store"](builder, pointers, value, mask, *rest)

    def add(builder: Any, operation: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        # Sums repeat if the order of additions is fixed: by the rules for stores, which allow an address one program.
        if operation != ATOMIC_OP.FADD:
            refuse()
        trace.write(builder.grid_idx, _addresses(pointers, mask))
        return originals["create_atomic_rmw"](builder, operation, pointers, value, mask, *rest)

    def refuse(*_: Any) -> None:
        raise AssertionError("the order of atomic operations is not fixed: results would not repeat")

    patches = {
        (GridExecutor, "__call__"): launched,
        (GridExecutor, "_init_args_hst"): arguments,
        (InterpretedFunction, "__call__"): called,
        (InterpreterBuilder, "create_masked_load"): load,
        (InterpreterBuilder, "create_masked_store"): store,
        (InterpreterBuilder, "create_atomic_cas"): refuse,
        (InterpreterBuilder, "create_atomic_rmw"): add,
        (InterpreterBuilder, "create_barrier"): lambda _: trace.barrier(),
    }
    with contextlib.ExitStack() as stack:
        for (owner, name), stand_in in patches.items():
            stack.enter_context(mock.patch.object(owner, name, stand_in))
        yield trace


def _addresses(pointers: Any, mask: Any) -> Addresses:
    """Return the addresses that a mask lets through."""
    return pointers.data[np.broadcast_to(mask.data, pointers.data.shape).astype(bool)]
