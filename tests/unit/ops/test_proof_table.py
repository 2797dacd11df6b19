"""The table of small problems: plain torch passes each of them, and backends that are wrong do not."""

import pytest
import torch

from megabert.ops.backend import BACKENDS, Backend, choose, no_obstacle, usable_backends
from megabert.ops.bias_gelu.cpu import bias_gelu_torch
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


@pytest.fixture
def use(monkeypatch):
    """Give an op a backend ``planted`` ahead of its others."""

    def put(op, run):
        monkeypatch.setitem(BACKENDS, op, (Backend("planted", run, no_obstacle), *BACKENDS[op]))

    yield put
    choose.cache_clear()


def rows_of(op, problem):
    rows = [row for row in compare(op, "planted", shapes_of(), CPU) if row.problem == problem]
    assert len(rows) == 1
    return rows[0]


def test_a_gradient_that_is_off_by_one_constant_does_not_pass(use):
    def wrong(x_TF, bias_F, *, approximate):
        y = bias_gelu_torch(x_TF, bias_F, approximate=approximate)
        return y.detach() + 1.001 * (y - y.detach())  # the value is right

    use("bias_gelu", wrong)
    assert usable_backends("bias_gelu", "cpu") == ["planted", "torch"]
    row = rows_of("bias_gelu", "erf")
    assert not row.passes
    assert row.worst in ("x_TF", "bias_F")
    assert "bias_gelu (erf, float32) by planted: relative error of" in str(row)


def test_one_wrong_bit_of_a_mask_does_not_pass(use):
    def wrong(x_RC, dropout):
        out = dropped_torch(x_RC, dropout)
        out[-1, -1] = x_RC[-1, -1] * dropout.scale if out[-1, -1] == 0 else 0
        return out

    use("dropout", wrong)
    assert not rows_of("dropout", "mask").passes


def test_nan_does_not_pass(use):
    use("bias_gelu", lambda x_TF, bias_F, *, approximate: (x_TF + bias_F) * float("nan"))
    assert not rows_of("bias_gelu", "erf").passes


def test_a_backend_that_raises_an_error_does_not_pass(use):
    def broken(x_TF, bias_F, *, approximate):
        raise RuntimeError("PassManager::run failed")

    use("bias_gelu", broken)
    row = rows_of("bias_gelu", "erf")
    assert not row.passes
    assert str(row).endswith("by planted failed: RuntimeError: PassManager::run failed")
