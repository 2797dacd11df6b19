"""Run in a process with TRITON_INTERPRET=1 (../test_interpreted_kernels.py); the names hide these files elsewhere."""

import os

import pytest


def _patch_for_numpy_2_4():
    """int(array of one element) is an error from NumPy 2.4 on: triton-lang/triton issue 9171, not fixed in 3.6."""
    from triton.runtime import interpreter

    original = interpreter._patch_lang_tensor

    def patch(tensor, scope):
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = patch


FOR_NUMPY_2_4 = os.environ.get("TRITON_INTERPRET") == "1"  # pytest reads this file in other processes, too
if FOR_NUMPY_2_4:
    _patch_for_numpy_2_4()


def narrow_shapes(dtype):
    """Return a narrow BERT's shapes: what interprets Triton's kernels is slow."""
    from megabert.ops.proof.table import Shapes

    return Shapes(
        attention="dense",
        hidden=16,
        heads=1,
        intermediate=24,
        classes=90,
        length=16,
        reach=1,
        span=1,
        is_approximate=False,
        dtype=dtype,
    )


@pytest.fixture
def assert_close():
    from megabert.ops.proof.problem import errors

    def check(problem, dtype, *, ignore=()):
        measured = errors(problem, dtype, backend="triton")
        assert {"out", "forward"} & set(measured)
        assert {
            name: error
            for name, error in measured.items()
            if not error <= problem.tolerance[dtype] and name not in ignore
        } == {}

    return check


@pytest.fixture(autouse=True)
def trace():
    """Hold every launch of a test against races: on a GPU, programs and threads run side by side."""
    from unit.ops.interpreted.races import tracing

    with tracing() as trace:
        yield trace
    assert {kernel: dict(faults) for kernel, faults in trace.faults.items() if faults} == {}
