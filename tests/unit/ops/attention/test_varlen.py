"""torch's varlen_attn as a backend of rotary attention: a stand-in computes on the CPU, torch's own on meta tensors."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from support.tiny_models import tiny_config
from torch.nn.attention import varlen

from megabert.foundation.errors import KernelError
from megabert.ops.attention.dense.cpu import DenseSequences, padded_attention
from megabert.ops.attention.rotary.cpu import rotary_attention_varlen
from megabert.ops.backend import BACKENDS, choose, no_obstacle, usable_backends, varlen_obstacle
from megabert.ops.dropout import Heads
from megabert.ops.proof.first_run import cases_of, find_failures, settle
from megabert.ops.proof.problem import TOLERANCE, errors
from megabert.ops.proof.problems import rotary_attention_problem

CPU = torch.device("cpu")


def stand_in(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, window_size=(-1, -1)):
    """Compute what torch documents; rows of no sequence hold whatever memory held, and so do their gradients."""
    assert cu_seq_q is cu_seq_k
    assert max_q == max_k
    assert query.dtype in (torch.float16, torch.bfloat16)
    assert window_size[0] == window_size[1]
    reach = None if window_size[0] < 0 else window_size[0]
    qkv_TC = torch.stack([query, key, value], 1).flatten(1)
    sequences = DenseSequences(cu_seq_q, max_q)
    out = padded_attention(qkv_TC, sequences, Heads(query.shape[1]), reach=reach).view_as(query)
    return Garbage.apply(out, int(cu_seq_q[-1]))


class Garbage(torch.autograd.Function):
    @staticmethod
    def forward(ctx, out, tokens):
        ctx.tokens = tokens
        out = out.clone()
        out[tokens:] = torch.nan
        return out

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        grad[ctx.tokens :] = torch.nan
        return grad, None


@pytest.fixture
def usable(monkeypatch):
    triton, varlen_backend, torch_backend = BACKENDS["rotary_attention"]
    possible = replace(varlen_backend, obstacle=no_obstacle)
    monkeypatch.setitem(BACKENDS, "rotary_attention", (triton, possible, torch_backend))
    monkeypatch.setattr(varlen, "varlen_attn", stand_in)
    choose.cache_clear()
    yield
    choose.cache_clear()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("reach", [None, 1, 16])
@pytest.mark.parametrize(("lengths", "padding"), [([40, 7, 0], 9), ([33], 0)], ids=str)
def test_varlen_matches_reference_and_leaves_padding_zero(lengths, padding, reach, dtype, generator, usable):
    options = {"heads": 2, "head_width": 16, "reach": reach, "padding": padding, "dropout": 0.0}
    problem = rotary_attention_problem(lengths, generator, **options)
    measured = errors(problem, dtype, backend="varlen")
    assert max(measured.values()) < TOLERANCE[dtype]
    assert set(measured) == {"out", "qkv_TC"}


def test_dropout_and_float32_take_plain_torch_by_auto_and_are_refused_by_name(generator, usable):
    for dropout, dtype in ((0.1, torch.float16), (0.0, torch.float32)):
        problem = rotary_attention_problem([9], generator, heads=1, head_width=8, reach=2, dropout=dropout)
        assert max(errors(problem, dtype, backend="auto").values()) < TOLERANCE[dtype]
        with pytest.raises(KernelError, match=r"ops\.attention=varlen.*takes 16 bits and drops no"):
            errors(problem, dtype, backend="varlen")


def test_torchs_own_takes_these_arguments(monkeypatch):
    """On meta tensors torch checks the call and runs both passes' shapes."""
    meta = torch.device("meta")
    sequences = SimpleNamespace(cu_seqlens=torch.empty(3, dtype=torch.int32, device=meta), max_seqlen=30)
    qkv = torch.empty(50, 3 * 32, dtype=torch.bfloat16, device=meta, requires_grad=True)
    turns = torch.empty(50, 2, 8, device=meta)
    for reach in (None, 4):
        out = rotary_attention_varlen(qkv, turns, sequences, Heads(2), reach=reach)
        (grad,) = torch.autograd.grad(out, qkv, torch.empty_like(out))
        assert out.shape == (50, 32)
        assert grad.shape == qkv.shape


def test_obstacles_name_what_is_missing(monkeypatch):
    assert varlen_obstacle("cpu") == "torch's varlen_attn needs a CUDA GPU"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    assert varlen_obstacle("cuda") == "torch's FlashAttention needs compute capability 8.0"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    assert varlen_obstacle("cuda") is None
    monkeypatch.setattr(varlen, "varlen_attn", lambda q, k, v, cu_q, cu_k, max_q, max_k, is_causal=False: q)
    assert varlen_obstacle("cuda").endswith("has no window")


@pytest.mark.parametrize("asked", ["auto", "varlen"])
def test_the_first_run_does_not_call_its_refusals_a_difference(asked, usable, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model, requested = tiny_config("modernbert", local_attention=8), {"attention": asked}
    cases = [case for case in cases_of([model], [32], torch.bfloat16) if case[0] == "rotary_attention"]
    failures = find_failures(cases, requested, CPU)
    assert settle([failures], requested, unproven="fallback", device=CPU) == ()
    assert usable_backends("rotary_attention", "cpu")[0] == "varlen"
