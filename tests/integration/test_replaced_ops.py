"""A run whose kernel is wrong: it says so wherever one looks, and its losses are plain torch's."""

import json

from support.runs import finished

SHORT = {"phases.0.steps": 2, "phases.1.steps": 1}


def test_a_wrong_kernel_is_replaced_and_the_losses_are_torchs(shards, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # what is proven there is remembered
    replaced = finished(tmp_path / "replaced", shards, module="integration.programs.wrong_kernel", flags=SHORT)
    sentence = "ops.bias_gelu: torch takes the place of a kernel that is wrong here: bias_gelu ("
    assert replaced.output.count(sentence) == 2  # at the beginning and at the end
    assert "ops on cpu: torch (layer_norm, attention, bias_gelu, cross_entropy, lamb)" in replaced.output
    status = json.loads((replaced.run_dir / "status.json").read_text())
    assert [line[: len(sentence)] for line in status["replaced_ops"]] == [sentence]
    assert any(sentence.encode() in path.read_bytes() for path in (replaced.run_dir / "tb").iterdir())

    torch = finished(tmp_path / "torch", shards, flags=SHORT)
    assert "takes the place" not in torch.output
    assert len(replaced.losses()) == 3
    assert replaced.losses() == torch.losses()  # bit for bit
