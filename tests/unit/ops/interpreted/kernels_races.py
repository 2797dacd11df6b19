"""Every kernel is traced by address, and a race that is planted in it is found.

The fixture ``trace`` holds all launches of the other files against races as well.
"""

import re
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle
from unit.ops.interpreted.races import FOREIGN_READ, NO_BARRIER, OUTSIDE, TWO_WRITERS, WRITTEN_TWICE

import megabert.ops
from megabert.ops.proof import exact_problems, inputs, problems
from megabert.ops.proof.problem import errors
from megabert.ops.triton_support.dropout_kernels import dropped_triton
from megabert.ops.triton_support.row_casts import cast_rows_triton
from megabert.ops.triton_support.table_gradients import table_gradient_triton


def run(*of_kernels):
    for problem in of_kernels:
        leaves = {name: tensor.half().requires_grad_() for name, tensor in problem.tensors.items()}
        problem.run(**leaves, backend="triton").sum().backward()


def run_all_kernels(generator):
    """Launch every kernel, with several programs each."""
    run(
        problems.attention_problem([137, 37], generator, heads=1, head_width=16, padding=9),
        problems.attention_problem([60, 7], generator, heads=1, head_width=16),
        problems.rotary_attention_problem([70, 9], generator, heads=1, head_width=16, reach=20, padding=5),
        problems.rotary_attention_problem([70, 9], generator, heads=1, head_width=16, reach=None),
        problems.disentangled_attention_problem([70, 9], generator, heads=1, head_width=16, span=40, padding=5),
        problems.layer_norm_problem((40, 64), generator, extras=("bias", "dropout", "residual", "twice")),
        problems.add_layer_norm_problem((40, 64), generator),
        problems.bias_gelu_problem((40, 300), generator, approximate=False),
        problems.gated_gelu_problem((40, 300), generator, approximate=True),
        problems.cross_entropy_problem((9, 128), generator, classes=120),
    )
    lamb = exact_problems.lamb_problem(50_001, generator, rounded=torch.bfloat16)
    lamb.run(**lamb.tensors, backend="triton")
    site = inputs.dropout_stream([2000], 2000, torch.device("cpu")).site(3, 1, 0.1)
    dropped_triton(torch.randn(2000, 8), site)
    order = torch.arange(40)
    table_gradient_triton(torch.randn(40, 200), order, torch.arange(0, 41, 2))
    cast_rows_triton(torch.randn(40, 64))


def functions_of_ops() -> set[str]:
    """Return the names of all kernels and device functions of ``megabert.ops``."""
    folder, names = Path(megabert.ops.__file__).parent, set()
    for path in folder.rglob("*.py"):
        names |= set(re.findall(r"^@triton\.jit.*\n(?:@.*\n)*def (\w+)", path.read_text(), re.MULTILINE))
    return names


def test_every_kernel_is_traced(trace, generator, monkeypatch):
    run_all_kernels(generator)
    monkeypatch.setattr("megabert.ops.attention.dense.triton.fills_card", lambda *_: True)
    run(problems.attention_problem([137], generator, heads=1, head_width=16))
    assert len(functions_of_ops()) > 40
    assert functions_of_ops() - trace.functions == set()


def faults_of(trace) -> dict[str, set[str]]:
    """Return the faults by kernel, and forget them: here they are planted."""
    faults = {kernel: set(counts) for kernel, counts in trace.faults.items()}
    trace.faults.clear()
    return faults


def test_programs_that_take_the_same_tile_are_seen_in_every_kernel(trace, generator, monkeypatch):
    number = InterpreterBuilder.create_get_program_id

    def halved(builder, axis):
        return TensorHandle(number(builder, axis).data // 2, tl.int32)

    monkeypatch.setattr(InterpreterBuilder, "create_get_program_id", halved)
    run_all_kernels(generator)
    faults = faults_of(trace)
    assert {kernel for kernel, found in faults.items() if TWO_WRITERS not in found} == set()


@pytest.mark.parametrize(
    ("capability", "seen"), [((8, 6), {NO_BARRIER}), ((9, 0), {NO_BARRIER, WRITTEN_TWICE})], ids=["reads", "adds"]
)
def test_a_kernel_without_its_barrier_is_seen(capability, seen, trace, generator, monkeypatch):
    monkeypatch.setattr("megabert.ops.attention.dense.triton.fills_card", lambda *_: True)
    monkeypatch.setattr("megabert.ops.attention.dense.triton.capability_of", lambda _: capability)
    long = problems.attention_problem([200, 37], generator, heads=1, head_width=16)
    errors(long, torch.float16, backend="triton")
    assert not any(faults_of(trace).values())
    monkeypatch.setattr(InterpreterBuilder, "create_barrier", lambda builder: None)
    errors(long, torch.float16, backend="triton")
    faults = faults_of(trace)
    assert faults.pop("attention_backward") == seen
    assert not any(faults.values())


@triton.jit
def _shift(x_ptr, by, number: tl.constexpr):
    place = tl.program_id(0) * number + tl.arange(0, number)
    tl.store(x_ptr + place, tl.load(x_ptr + place + by))


@triton.jit
def _store_all_at_once(x_ptr, number: tl.constexpr):
    tl.store(x_ptr + tl.program_id(0) + tl.arange(0, number) // 2, 1.0)


@triton.jit
def _take_the_larger(x_ptr):
    tl.atomic_max(x_ptr, 1)


@pytest.mark.parametrize(("by", "fault"), [(0, set()), (4, {FOREIGN_READ, OUTSIDE}), (-4, {FOREIGN_READ, OUTSIDE})])
def test_a_read_of_what_another_program_writes_is_seen(by, fault, trace):
    room = torch.zeros(24)  # of which the middle is used: nothing else is read
    _shift[(2,)](room[8:16].clone(), by, 4)
    assert faults_of(trace) == {"_shift": fault}


def test_an_address_that_one_store_writes_twice_is_seen(trace):
    _store_all_at_once[(1,)](torch.zeros(8), 8)
    assert faults_of(trace) == {"_store_all_at_once": {WRITTEN_TWICE}}


def test_other_atomic_operations_are_refused():
    with pytest.raises(Exception, match="order of atomic operations is not fixed"):
        _take_the_larger[(2,)](torch.zeros(1, dtype=torch.int32))
