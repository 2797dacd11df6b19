"""A run whose kernel is wrong: it says so wherever one looks, and its losses are plain torch's."""

import json

import pytest
from support.runs import Run

pytest.importorskip("triton")

SHORT = {
    "phases.0.steps": 2,
    "phases.0.global_batch_size": 4,
    "phases.1.steps": 1,
    "phases.1.global_batch_size": 2,
    "validation.every_steps": 3,
    "validation.max_instances": 4,
    "model.hidden_size": 16,
    "model.num_attention_heads": 1,
    "model.intermediate_size": 24,
    # Triton's interpreter is slow: the other ops are plain torch.
    **dict.fromkeys(("ops.layer_norm", "ops.bias_gelu", "ops.cross_entropy", "ops.lamb"), "torch"),
}


def start(folder, shards, **flags):
    return Run(folder, shards, launcher="none", module="integration.programs.wrong_kernel", flags={**SHORT, **flags})


@pytest.fixture(autouse=True)
def interpreted(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_a_kernel_with_one_wrong_constant_is_replaced_and_the_losses_are_torchs(shards, tmp_path):
    replaced = start(tmp_path / "replaced", shards)
    replaced.finish_well()
    sentence = "ops.attention: torch takes the place of a kernel that is wrong here: attention (few, float32) by"
    assert replaced.output.count(sentence) == 2  # at the beginning and at the end
    assert "ops on cpu: torch (layer_norm, attention, bias_gelu, cross_entropy, lamb)" in replaced.output
    status = json.loads((replaced.run_dir / "status.json").read_text())
    assert [line[: len(sentence)] for line in status["replaced_ops"]] == [sentence]
    assert any(sentence.encode() in path.read_bytes() for path in (replaced.run_dir / "tb").iterdir())

    torch = start(tmp_path / "torch", shards, **{"ops.attention": "torch"})
    torch.finish_well()
    assert "takes the place" not in torch.output
    assert len(replaced.losses()) == 3
    assert replaced.losses() == torch.losses()  # bit for bit
