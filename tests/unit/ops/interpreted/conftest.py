"""Run in a process with TRITON_INTERPRET=1 (../test_interpreted_kernels.py); the names hide these files elsewhere."""

import os
from dataclasses import replace
from types import SimpleNamespace

import pytest


def _patch_for_numpy_2_4():
    """int(array of one element) is an error from NumPy 2.4 on: triton-lang/triton issue 9171, not fixed in 3.6."""
    from triton.runtime import interpreter

    original = interpreter._patch_lang_tensor

    def patch(tensor, scope):
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = patch


def _round_to_8_bits_as_torch():
    """Rounding to 8 bits is wrong in the interpreter of Triton 3.6 where a carry reaches the exponent."""
    import torch
    from triton.runtime import interpreter

    original, types = interpreter._convert_float, {"fp8e4nv": torch.float8_e4m3fn, "fp8e5": torch.float8_e5m2}

    def convert(values, source, target, rounding):
        if target.name not in types or source.name != "fp32":
            return original(values, source, target, rounding)
        floats = torch.from_numpy(values.copy()).view(torch.float32)
        return floats.to(types[target.name]).view(torch.uint8).numpy()

    interpreter._convert_float = convert


def _prepare_once():
    """Keep what the interpreter makes anew at each call of a device function and at each operation: half of its time.

    It puts its own functions in the place of Triton's at each call, and takes them away after each launch.
    """
    import triton.language as tl
    from triton.language import core
    from triton.runtime import interpreter

    # Else each sum of integers is computed a second time, for an assertion that the interpreter never makes (no debug).
    builder = interpreter.interpreter_builder
    builder.options = replace(builder.options, sanitize_overflow=False)
    patch_lang, dtype_of, type_of = interpreter._patch_lang, interpreter._get_np_dtype, core._type_for_tuple_values
    scopes, dtypes, types, blocks = {}, {}, {}, {}

    def patch_once(function):
        modules = [value for value in function.__globals__.values() if value is tl or value is core]
        if any(module not in scopes for module in modules):
            scopes.update(dict.fromkeys(modules, patch_lang(function)))
        return SimpleNamespace(restore=lambda: None)

    def np_dtype(dtype):
        name = dtype.scalar.name
        return dtypes.get(name) or dtypes.setdefault(name, dtype_of(dtype))

    def type_of_tuple(values, fields=None):
        sizes = tuple(value.value if type(value) is core.constexpr else value for value in values)
        if fields is not None or any(type(size) is not int for size in sizes):
            return type_of(values, fields)
        return types.get(sizes) or types.setdefault(sizes, type_of(values))

    def block_of(scalar, shape):
        key = scalar.name, shape
        return blocks.get(key) or blocks.setdefault(key, core.block_type(scalar, shape))

    interpreter._patch_lang = patch_once
    core.block_type.with_element_ty = lambda block, scalar: block_of(scalar, block.shape)
    interpreter.InterpreterBuilder.get_block_ty = lambda builder, dtype, shape: block_of(dtype, shape)
    interpreter._get_np_dtype = np_dtype
    core._type_for_tuple_values = type_of_tuple


if os.environ.get("TRITON_INTERPRET") == "1":  # pytest reads this file in other processes, too
    _patch_for_numpy_2_4()
    _round_to_8_bits_as_torch()
    _prepare_once()


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
