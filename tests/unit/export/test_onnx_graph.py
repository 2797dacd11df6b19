"""The ONNX form of an export: equal numbers, the names and the place that servers expect; every family is in soak."""

import json
import re

import numpy as np
import pytest
import torch
from support import parity_heads, parity_models
from support.onnx_differences import form_differences

from megabert.cli import main
from megabert.errors import CheckpointError, ConfigError
from megabert.export import check_forms, onnx_graph
from megabert.export.check_forms import require_equal_onnx
from megabert.export.forms import Forms
from megabert.export.onnx_graph import Graph, library
from megabert.export.run_folder import export_again

TOLERANCE = 1e-4
LENGTHS = (1, 2, 17, 64)


@pytest.fixture(scope="module")
def modernbert(tmp_path_factory):
    """A random ModernBERT with its ONNX form, which gives mean vectors."""
    folder = tmp_path_factory.mktemp("modernbert")
    case = next(case for case in parity_models.CASES if case.family == "modernbert")
    tokenizer = parity_models.make_tokenizer(folder / "tokenizer", pad_id=1)
    parity_models.write(parity_models.random_model(case.config, case.objective), folder / "source", tokenizer)
    differences = form_differences(folder / "source", folder / "onnx", "mean", LENGTHS)
    return folder / "onnx", differences["ONNX"]


def test_pooled_vectors_equal_transformers(modernbert):
    folder, difference = modernbert
    assert difference < TOLERANCE
    assert (folder / "onnx/model.onnx").is_file()
    assert not (folder / "onnx/model.onnx.data").exists()  # one file below 2 GiB
    assert json.loads((folder / "1_Pooling/config.json").read_text())["pooling_mode_mean_tokens"]


def test_logits_of_a_head_equal_transformers(tmp_path):
    case = parity_heads.Case("bert", "classification")
    parity_heads.write_random_model(case, tmp_path)
    assert form_differences(tmp_path / "ours", tmp_path / "onnx", None, LENGTHS)["ONNX"] < TOLERANCE


def test_check_prints_each_form(modernbert, tmp_path, capsys):
    words = ["--to", str(tmp_path / "out"), "--sentence-transformers", "cls", "--check"]
    assert main(["export", str(modernbert[0]), *words]) == 0
    lines = capsys.readouterr().out.splitlines()[2:]
    differences = {line.split()[0]: float(line.split()[1]) for line in lines}
    assert differences.keys() == {"megabert", "float16"}
    assert 0 < differences["megabert"] < 1e-4 < differences["float16"] < 1e-1


def test_a_graph_that_differs_is_not_published(modernbert, monkeypatch, tmp_path):
    folder, _ = modernbert
    require_equal_onnx(folder, "mean")
    with monkeypatch.context() as patched:
        patched.setattr(onnx_graph.Graph, "forward", lambda self, *a, **k: [2 * v for v in FORWARD(self, *a, **k)])
        with pytest.raises(CheckpointError, match="so nothing was written"):
            require_equal_onnx(folder, "mean")

    def broken(*_):
        raise CheckpointError("differs")

    monkeypatch.setattr(check_forms, "require_equal_onnx", broken)
    monkeypatch.setattr(onnx_graph, "write_onnx", lambda *_: None)
    with pytest.raises(CheckpointError, match="differs"):
        export_again(folder, tmp_path / "out", Forms(has_onnx=True))
    assert not (tmp_path / "out").exists()


FORWARD = Graph.forward


def test_results_that_are_not_finite_differ(modernbert, monkeypatch):
    def with_nan(self, *args, **kwargs):
        return [value * torch.tensor(float("nan")) for value in FORWARD(self, *args, **kwargs)]

    monkeypatch.setattr(onnx_graph.Graph, "forward", with_nan)
    with pytest.raises(CheckpointError, match="nan"):
        require_equal_onnx(modernbert[0], "mean")


def test_a_missing_package_is_named_with_its_extra():
    with pytest.raises(
        ConfigError, match=re.escape("--onnx needs nonsuch (No module named 'nonsuch'). Install it: pip")
    ):
        library("nonsuch", "--onnx")


def test_a_sample_has_padding_and_ids_of_the_vocabulary(modernbert):
    graph = onnx_graph.load_graph(modernbert[0], "mean", flag="--check")
    for batch, length in [(1, 1), (2, 1), (8, 1), (8, 512), (3, 7)]:
        inputs = graph.sample(batch, length)
        kept = inputs["attention_mask"].sum(1)
        assert inputs["input_ids"].shape == (batch, length)
        assert kept[0] == length
        assert (kept >= 1).all()
        assert length < 3 or batch == 1 or (kept[1:] < length).all()
        assert 0 <= inputs["input_ids"].min() <= inputs["input_ids"].max() < parity_models.VOCABULARY
        assert np.array_equal(inputs["input_ids"], graph.sample(batch, length)["input_ids"])
