"""The Apex binding against a stand-in that has Apex's documented signature; it has not met a real Apex."""

import functools
import sys

import pytest
import torch
from torch.nn import functional
from unit.optim.test_apex_lamb import install

from megabert.foundation.errors import KernelError
from megabert.ops.backend import apex_obstacle, apex_status, describe_choices
from megabert.ops.layer_norm.api import layer_norm
from megabert.settings.config.model import ModelConfig


@pytest.fixture
def apex_stand_in(monkeypatch):
    def fused_layer_norm_affine(input, weight, bias, normalized_shape, eps=1e-6, memory_efficient=False):
        assert input.dtype == weight.dtype
        return functional.layer_norm(input, normalized_shape, weight, bias, eps)

    names = ("apex", "apex.normalization", "apex.normalization.fused_layer_norm", "fused_layer_norm_cuda")
    install(monkeypatch, *names)
    sys.modules[names[2]].fused_layer_norm_affine = fused_layer_norm_affine
    yield
    sys.modules.pop("megabert.ops.layer_norm.apex", None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_apex_layer_norm_equals_torchs(apex_stand_in, dtype, generator, make_site):
    from megabert.ops.layer_norm.apex import layer_norm_apex

    rows = {name: torch.randn(9, 32, generator=generator).to(dtype) for name in ("x_TD", "residual_TD")}
    columns = {n: torch.randn(32, generator=generator).to(dtype) for n in ("weight_D", "bias_D", "input_bias_D")}
    results = []
    for op in (layer_norm_apex, layer_norm):
        leaves = {name: tensor.clone().requires_grad_() for name, tensor in (rows | columns).items()}
        out, twin = op(**leaves, eps=1e-12, dropout=make_site(9))
        (out + 2 * twin).backward(torch.ones_like(out).cumsum(1) / 32)
        results.append([out.detach(), *(leaf.grad for leaf in leaves.values())])
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected)


def test_absent_apex_is_named_with_its_source():
    assert "source-only" in apex_obstacle("cuda")
    assert apex_status().startswith("apex: absent (optional); to build it: git clone https://github.com/NVIDIA/apex")


def test_apex_status_names_what_a_partial_build_lacks(apex_stand_in, monkeypatch):
    assert apex_obstacle("cuda") is None
    assert "needs a CUDA GPU" in apex_obstacle("cpu")
    assert apex_status().startswith("apex: without its modules amp_C (optional); to build them: git clone")
    install(monkeypatch, "amp_C")
    assert apex_status() == "apex: importable (optional); choose it with ops.layer_norm=apex or ops.lamb=apex"


def test_lamb_by_apex_is_a_choice_if_apex_has_its_kernels(apex_stand_in, monkeypatch):
    describe = functools.partial(describe_choices, {"lamb": "apex"}, model=ModelConfig(), precision="bf16")
    with pytest.raises(KernelError, match=r"ops\.lamb=apex cannot run: the apex here has no module amp_C"):
        describe("cuda", has_lamb=True)
    install(monkeypatch, "amp_C")
    assert describe("cuda", has_lamb=True) == "ops on cuda: apex (lamb)"
    with pytest.raises(KernelError, match=r"ops\.lamb=apex cannot run: NVIDIA Apex needs a CUDA GPU"):
        describe("cpu", has_lamb=True)
