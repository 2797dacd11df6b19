"""The first run finds an error in a kernel, and blames a wrong constant on the ops that have it alone."""

from dataclasses import replace

import pytest
import torch
import triton.language as tl
from unit.ops.interpreted.conftest import narrow_shapes
from unit.ops.interpreted.planted import planted, text_of

from megabert.ops.attention.dense import triton as dense
from megabert.ops.backend import forget_disproved, usable_backends
from megabert.ops.bias_gelu.triton import bias_gelu_backward
from megabert.ops.layer_norm.kernels import layer_norm_forward
from megabert.ops.proof.first_run import find_failures, settle
from megabert.ops.triton_support import device_functions

CPU = torch.device("cpu")
SHAPES = narrow_shapes(torch.float32)
AUTO = dict.fromkeys(("layer_norm", "attention", "bias_gelu", "cross_entropy"), "auto")
CASES = [(op, SHAPES) for op in SHAPES.ops if op != "lamb"]


def constant(name, change):
    return device_functions, name, tl.constexpr(getattr(device_functions, name).value + change)


PLANTED = {
    "every hash": (constant("SECOND", 2), CASES, {"attention", "dropout", "dropout_keys", "layer_norm"}),
    "attention's exponent": ((dense, "LOG2_E", 1.443), [("attention", SHAPES), ("layer_norm", SHAPES)], {"attention"}),
}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    yield
    forget_disproved()


@pytest.mark.parametrize(("wrong", "cases", "blamed"), PLANTED.values(), ids=PLANTED)
def test_a_wrong_constant_is_found(wrong, cases, blamed, monkeypatch):
    monkeypatch.setattr(*wrong)
    failures = find_failures(cases, AUTO, CPU)
    assert failures.keys() == {(op, "triton") for op in blamed}
    sentences = settle([failures], AUTO, unproven="fallback", device=CPU)
    assert len(sentences) == len(blamed)
    assert {op for op, _ in cases if usable_backends(op, "cpu")[0] == "torch"} == blamed


LEFT_OUT = {
    "LayerNorm's eps": ("layer_norm", layer_norm_forward, "axis=1) / width + eps", "axis=1) / width"),
    "a program's second tile": ("bias_gelu", bias_gelu_backward, "rows_each + first +", "rows_each +"),
}


@pytest.mark.parametrize(("op", "kernel", "right", "wrong"), LEFT_OUT.values(), ids=LEFT_OUT)
def test_a_part_of_a_formula_that_is_left_out_is_found(op, kernel, right, wrong, trace):
    """``soak/kernel_mutants.py`` has every number and operator of all kernels."""
    text = text_of(kernel)
    assert text.count(right) == 1
    with planted(kernel, text.replace(right, wrong)):
        assert find_failures([(op, SHAPES)], {op: "auto"}, CPU).keys() == {(op, "triton")}
    trace.faults.clear()  # tiles that two programs write are planted, too


def test_kernels_as_they_are_pass():
    assert find_failures([("lamb", SHAPES), ("layer_norm", SHAPES)], {"lamb": "auto", "layer_norm": "auto"}, CPU) == {}


def test_heads_that_are_too_wide_are_refused_and_no_difference():
    wide = replace(SHAPES, hidden=256, length=4)
    assert find_failures([("attention", wide)], {"attention": "auto"}, CPU) == {}
