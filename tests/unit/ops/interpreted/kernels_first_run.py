"""One wrong constant in a kernel is found by the first run, and blamed on the ops that have it alone."""

import pytest
import torch
import triton.language as tl
from unit.ops.interpreted.conftest import narrow_shapes

from megabert.ops.attention.dense import triton as dense
from megabert.ops.backend import forget_disproved, usable_backends
from megabert.ops.proof.first_run import find_failures, settle
from megabert.ops.triton_support import device_functions

CPU = torch.device("cpu")
SHAPES = narrow_shapes(torch.float32)
AUTO = dict.fromkeys(("layer_norm", "attention", "bias_gelu", "cross_entropy"), "auto")
CASES = [(op, SHAPES) for op in SHAPES.ops if op != "lamb"]


def constant(name, change):
    return device_functions, name, tl.constexpr(getattr(device_functions, name).value + change)


PLANTED = {
    "every hash": (constant("SECOND", 2), {"attention", "dropout", "dropout_keys", "layer_norm"}),
    "attention's exponent": ((dense, "LOG2_E", 1.443), {"attention"}),
}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    yield
    forget_disproved()


@pytest.mark.parametrize(("planted", "blamed"), PLANTED.values(), ids=PLANTED)
def test_a_wrong_constant_is_found(planted, blamed, monkeypatch):
    monkeypatch.setattr(*planted)
    failures = find_failures(CASES, AUTO, CPU)
    assert failures.keys() == {(op, "triton") for op in blamed}
    sentences = settle([failures], AUTO, unproven="fallback", device=CPU)
    assert len(sentences) == len(blamed)
    assert {op for op, _ in CASES if usable_backends(op, "cpu")[0] == "torch"} == blamed
