"""The ONNX form of an export: equal numbers, the names and the place that servers expect; every family is in soak."""

import json
import re

import numpy as np
import pytest
import torch
from support import parity_heads, parity_models
from support.onnx_differences import form_differences

from megabert.downstream.publish import onnx_graph
from megabert.downstream.publish.forms import Forms
from megabert.downstream.publish.onnx_graph import Graph, library, require_equal_onnx
from megabert.downstream.publish.run_folder import export_again
from megabert.foundation.errors import CheckpointError, ConfigError

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
    assert b"onnx_graph.py" not in (folder / "onnx/model.onnx").read_bytes()  # nor any other path of this machine
    assert not (folder / "onnx/model.onnx.data").exists()  # one file below 2 GiB
    assert json.loads((folder / "1_Pooling/config.json").read_text())["pooling_mode_mean_tokens"]


def test_check_prints_each_form(modernbert, tmp_path, megabert):
    words = ["--to", str(tmp_path / "out"), "--sentence-transformers", "cls", "--check"]
    lines = megabert("export", modernbert[0].with_name("source"), *words).out.splitlines()[2:]
    differences = {line.split()[0]: float(line.split()[1]) for line in lines}
    assert differences.keys() == {"megabert", "float16"}
    assert 0 < differences["megabert"] < 1e-4 < differences["float16"] < 1e-1


@pytest.mark.parametrize(("factor", "says"), [(2, "so nothing was written"), (float("nan"), "nan")])
def test_results_that_differ_or_are_not_finite_are_refused(modernbert, monkeypatch, factor, says):
    require_equal_onnx(modernbert[0], "mean")
    monkeypatch.setattr(Graph, "forward", lambda self, *a, **k: [factor * v for v in FORWARD(self, *a, **k)])
    with pytest.raises(CheckpointError, match=says):
        require_equal_onnx(modernbert[0], "mean")


def test_a_graph_that_differs_is_not_published(modernbert, monkeypatch, tmp_path):

    def broken(*_):
        raise CheckpointError("differs")

    monkeypatch.setattr(onnx_graph, "require_equal_onnx", broken)
    monkeypatch.setattr(onnx_graph, "write_onnx", lambda *_: None)
    with pytest.raises(CheckpointError, match="differs"):
        export_again(modernbert[0], tmp_path / "out", Forms(vectors="mean", has_onnx=True))
    assert not (tmp_path / "out").exists()


def test_a_graph_that_torch_cannot_export_is_refused(modernbert, monkeypatch, tmp_path):
    def fail(*_, **__):
        raise torch.onnx.OnnxExporterError("no such operator\nstack: ...")

    monkeypatch.setattr("torch.onnx.export", fail)
    with pytest.raises(CheckpointError, match=r"cannot export ModernBertModel to ONNX \(no such operator stack"):
        export_again(modernbert[0], tmp_path / "out", Forms(vectors="mean", has_onnx=True))
    assert not (tmp_path / "out").exists()


FORWARD = Graph.forward


def test_an_empty_row_gives_a_vector_of_zeros(modernbert):
    graph = onnx_graph.load_graph(modernbert[0], "mean", flag="--check")
    inputs = graph.sample(2, 5)
    inputs["attention_mask"][1] = 0
    for run in (onnx_graph.torch_run(graph), onnx_graph.onnx_run(modernbert[0])):
        vectors = run(inputs)[graph.output_names.index("sentence_embedding")]
        assert np.isfinite(vectors).all()
        assert not vectors[1].any()


@pytest.mark.parametrize("fault", ["no graph", "an input that it lacks"])
def test_what_onnxruntime_refuses_is_an_error_of_ours(fault, modernbert, tmp_path):
    (tmp_path / "onnx").mkdir()
    content = b"" if fault == "no graph" else (modernbert[0] / "onnx/model.onnx").read_bytes()
    (tmp_path / "onnx/model.onnx").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"onnx/model.onnx: onnxruntime \d.* cannot compute it \(.*INVALID_ARG"):
        onnx_graph.onnx_run(tmp_path)({"input_ids": torch.ones(1, 2), "attention_mask": torch.ones(1, 2)})


def test_results_of_tokens_are_told_from_the_others(tmp_path):
    parity_heads.write_random_model(parity_heads.Case("bert", "classification"), tmp_path)
    graph = onnx_graph.load_graph(tmp_path / "ours", None, flag="--check")
    assert (graph.output_names, graph.are_of_tokens) == (("logits",), [False])
    graph = onnx_graph.load_graph(tmp_path / "ours", "cls", flag="--check")
    assert graph.are_of_tokens == [True, False]


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"architectures": ["BertForPoetry"]}, ConfigError, "BertForPoetry, which transformers .* does not have"),
        ({"architectures": ["pipeline"]}, ConfigError, "pipeline, which is no bert model"),
        ({"architectures": ["BertConfig"]}, ConfigError, "BertConfig, which is no bert model"),
        ({"architectures": ["GPT2Model"]}, ConfigError, "GPT2Model, which is no bert model"),
        ({"architectures": ["BertForQuestionAnswering"]}, CheckpointError, "lack qa_outputs.bias .*2 such weights"),
        ({"id2label": {"0": "a", "1": "b"}}, CheckpointError, "lack classifier.bias or have it in another size"),
    ],
)
def test_a_class_that_the_weights_do_not_fit_is_refused(tmp_path, changes, error, says):
    parity_heads.write_random_model(parity_heads.Case("bert", "classification"), tmp_path)
    config = tmp_path / "ours/config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | changes))
    with pytest.raises(error, match=says):
        onnx_graph.load_graph(tmp_path / "ours", None, flag="--onnx")


def test_a_missing_package_is_named_with_its_extra():
    with pytest.raises(ConfigError, match=re.escape("--onnx needs nonsuch (No module named 'nonsuch'). Install it")):
        library("nonsuch", "--onnx")


def test_a_sample_has_padding_and_ids_of_the_vocabulary(modernbert):
    graph = onnx_graph.load_graph(modernbert[0], "mean", flag="--check")
    for batch, length in [(1, 1), (2, 1), (8, 1), (8, 512), (3, 7)]:
        inputs = graph.sample(batch, length)
        kept = inputs["attention_mask"].sum(1)
        assert inputs["input_ids"].shape == (batch, length)
        assert kept[0] == length
        assert (kept >= 1).all()
        is_padding = inputs["input_ids"] == graph.model.config.pad_token_id
        assert torch.equal(is_padding, inputs["attention_mask"] == 0)
        assert length < 3 or batch == 1 or (kept[1:] < length).all()
        assert 0 <= inputs["input_ids"].min() <= inputs["input_ids"].max() < parity_models.VOCABULARY
        assert np.array_equal(inputs["input_ids"], graph.sample(batch, length)["input_ids"])
