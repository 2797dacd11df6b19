"""The table of small problems: plain torch passes each of them, and backends that are wrong do not."""

import re

import pytest
import torch

from megabert.ops.backend import BACKENDS, Backend, choose, no_obstacle, usable_backends
from megabert.ops.bias_gelu.cpu import bias_gelu_torch
from megabert.ops.dense import table_gradient_torch
from megabert.ops.dropout import dropped_torch
from megabert.ops.proof.table import PROBLEMS, Shapes, compare
from megabert.settings.config.model import ModelConfig

CPU = torch.device("cpu")
SIZES = {"vocab_size": 200, "hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 96}
MODELS = {
    "bert": ModelConfig(**SIZES),
    "modernbert": ModelConfig(family="modernbert", **SIZES, hidden_dropout_prob=0.1, local_attention=16),
    "deberta-v2": ModelConfig(family="deberta-v2", **SIZES, position_buckets=8),
}


def shapes_of(family="bert", dtype=torch.float32):
    return Shapes.of_model(MODELS[family], length=40, dtype=dtype)


def test_every_op_with_kernels_has_problems():
    has_several = {op for op, table in BACKENDS.items() if len(table) > 1}
    assert set(PROBLEMS) - {"dense", "fp8"} == has_several
    assert {op for family in MODELS for op in shapes_of(family).ops} == has_several - {"fp8_casts"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", MODELS)
def test_plain_torch_passes_every_problem(family, dtype):
    shapes = shapes_of(family, dtype)
    rows = [row for op in (*shapes.ops, "dense", "fp8", "fp8_casts") for row in compare(op, "torch", shapes, CPU)]
    assert [str(row) for row in rows if not row.passes] == []
    assert {row.bound for row in rows} >= {0.0, 1e-5}
    assert {"keys", "mask"} < {row.problem for row in rows}


def wrong_gradient(x_TF, bias_F, *, approximate):
    y = bias_gelu_torch(x_TF, bias_F, approximate=approximate)
    return y.detach() + 1.001 * (y - y.detach())  # the value is right


def one_wrong_bit(x_RC, dropout):
    out = dropped_torch(x_RC, dropout)
    out[-1, -1] = x_RC[-1, -1] * dropout.scale if out[-1, -1] == 0 else 0
    return out


def without_the_last_token(grad_TE, order_T, first_R):
    return table_gradient_torch(grad_TE, order_T, first_R.clamp(max=len(order_T) - 1))


def not_a_number(x_TF, bias_F, *, approximate):
    return (x_TF + bias_F) * float("nan")


def broken(x_TF, bias_F, *, approximate):
    raise RuntimeError("PassManager::run failed")


@pytest.mark.parametrize(
    ("op", "problem", "run", "said"),
    [
        ("bias_gelu", "erf", wrong_gradient, r"bias_gelu \(erf, float32\) by planted: relative error of (x_TF|bias_F)"),
        ("dropout", "mask", one_wrong_bit, "by planted: "),
        ("embedding", "gradient", without_the_last_token, "by planted: relative error of gradient 0.0"),
        ("bias_gelu", "erf", not_a_number, "by planted: "),
        ("bias_gelu", "erf", broken, "by planted failed: RuntimeError: PassManager::run failed$"),
    ],
)
def test_a_wrong_backend_does_not_pass(op, problem, run, said, monkeypatch):
    monkeypatch.setitem(BACKENDS, op, (Backend("planted", run, no_obstacle), *BACKENDS[op]))
    assert usable_backends(op, "cpu") == ["planted", "torch"]
    (row,) = (row for row in compare(op, "planted", shapes_of(), CPU) if row.problem == problem)
    choose.cache_clear()
    assert not row.passes
    assert re.search(said, str(row))
