"""The choice among backends: which runs, what is logged, and what is refused with which reason."""

import ast
import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from megabert.foundation.errors import KernelError
from megabert.ops import backend
from megabert.ops.attention.dense.api import attention
from megabert.ops.attention.dense.cpu import DenseSequences
from megabert.ops.backend import BACKENDS, Backend, choose, describe_choices, no_obstacle, triton_obstacle
from megabert.ops.bias_gelu.api import bias_gelu
from megabert.ops.cross_entropy.api import cross_entropy
from megabert.ops.lamb import SlotFragment, lamb_passes
from megabert.ops.layer_norm.api import layer_norm
from megabert.settings.config.model import ModelConfig

CALLS = {
    "layer_norm": lambda backend: layer_norm(
        torch.ones(2, 4), torch.ones(4), torch.zeros(4), eps=1e-12, backend=backend
    )[0],
    "bias_gelu": lambda backend: bias_gelu(torch.ones(2, 4), torch.zeros(4), backend=backend),
    "attention": lambda backend: attention(
        torch.ones(2, 12), DenseSequences(torch.tensor([0, 2], dtype=torch.int32), 2), num_heads=1, backend=backend
    ),
    "cross_entropy": lambda backend: cross_entropy(torch.ones(2, 4), torch.tensor([1, 3]), backend=backend)[0],
    "lamb": lambda backend: lamb_pass_2(backend),
}


def lamb_pass_2(backend):
    weights = torch.ones(3)
    scales = torch.tensor([-0.5], dtype=torch.float64)
    passes = lamb_passes(backend, "cpu")
    passes.apply_update(weights, torch.ones(3), fragments=[SlotFragment(0, 2, 0)], scales=scales)
    return weights


@pytest.mark.parametrize("op", CALLS)
@pytest.mark.parametrize("backend", ["triton", "apex", "nonsense"])
def test_backend_that_cannot_run_is_refused_with_the_reason(op, backend):
    with pytest.raises(KernelError, match=rf"ops\.{op}={backend}.*Choose auto or one of: torch"):
        CALLS[op](backend)


@pytest.mark.parametrize("op", CALLS)
def test_auto_says_once_what_runs_and_why(op, caplog):
    choose.cache_clear()
    with caplog.at_level(logging.DEBUG, logger="megabert.ops.backend"):
        for _ in range(3):
            CALLS[op]("auto")
    (message,) = caplog.messages
    assert message.startswith(f"ops.{op}: torch on cpu (triton: ")


def test_the_table_names_functions_that_exist():
    root = Path(backend.__file__).parent
    for run in (own.run for backends in BACKENDS.values() for own in backends if isinstance(own.run, str)):
        module, name = run.split(":")
        tree = ast.parse((root / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))
        assigned = {
            node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
        names = {getattr(node, "name", None) for node in tree.body} | assigned
        assert name in names, run


def test_auto_takes_the_first_that_can_run_and_says_once_why(caplog):
    table = (
        Backend("fast", lambda: "fast", lambda device: None if device == "cuda" else "it needs a GPU"),
        Backend("plain", lambda: "plain", no_obstacle),
    )
    with caplog.at_level(logging.DEBUG, logger="megabert.ops.backend"):
        assert [choose("probe", "auto", "cpu", table)() for _ in range(3)] == ["plain"] * 3
        assert choose("probe", "auto", "cuda", table)() == "fast"
    assert caplog.messages == [
        "ops.probe: plain on cpu (fast: it needs a GPU)",
        "ops.probe: fast on cuda (it is the first choice)",
    ]


def test_triton_needs_a_compiler_and_headers(monkeypatch, tmp_path):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "gcc or clang is not on the PATH" in triton_obstacle("cuda")
    (tmp_path / "gcc").touch(mode=0o755)
    folders = {"posix_prefix": tmp_path, "posix_local": tmp_path / "local"}
    monkeypatch.setattr("sysconfig.get_default_scheme", lambda: "posix_local")  # of a Debian's own Python
    monkeypatch.setattr("sysconfig.get_path", lambda name, scheme: str(folders[scheme]))
    assert f"{tmp_path} has no Python.h" in triton_obstacle("cuda")
    (tmp_path / "Python.h").touch()
    assert triton_obstacle("cuda") is None
    monkeypatch.setenv("CC", "mycc")
    assert "mycc is not on the PATH" in triton_obstacle("cuda")


def test_choices_are_one_line():
    requested = {"attention": "auto", "layer_norm": "torch", "lamb": "auto"}
    line = describe_choices(requested, "cpu", has_lamb=True, model=ModelConfig(), precision="fp32")
    assert line == "ops on cpu: torch (attention, layer_norm, lamb)"


def test_choices_are_those_of_what_runs(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    requested = {"attention": "auto", "bias_gelu": "auto", "lamb": "auto"}
    for family in ("deberta", "modernbert"):
        model = ModelConfig(family=family)
        line = describe_choices(requested, "cpu", has_lamb=False, model=model, precision="fp32")
        assert line == "ops on cpu: triton (attention, bias_gelu)"


@pytest.mark.parametrize(
    ("precision", "dropout", "name"),
    [("bf16", 0.0, "varlen"), ("fp8", 0.0, "varlen"), ("fp32", 0.0, "torch"), ("bf16", 0.1, "torch")],
)
def test_choices_name_varlen_only_in_16_bits_without_dropout(precision, dropout, name, monkeypatch):
    _, varlen, plain = BACKENDS["rotary_attention"]
    monkeypatch.setitem(BACKENDS, "rotary_attention", (replace(varlen, obstacle=no_obstacle), plain))
    model = ModelConfig(family="modernbert", attention_probs_dropout_prob=dropout)
    line = describe_choices({"attention": "auto"}, "cuda", has_lamb=False, model=model, precision=precision)
    assert line == f"ops on cuda: {name} (attention)"
