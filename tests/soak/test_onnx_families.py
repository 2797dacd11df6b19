"""The forms of every family, with every head and kind of vector: largest differences to transformers' class."""

import onnxruntime
import pytest
import torch
import transformers
from soak.soak_table import SoakTable
from support import parity_heads, parity_models
from support.onnx_differences import form_differences

from megabert.downstream.export.export_folder import ONNX_FILES
from megabert.downstream.finetuning.model import NO_CLASS

pytestmark = pytest.mark.soak

BARS = {"megabert": 1e-4, "ONNX": 1e-4, "float16": 2e-2}
PRETRAINED = {case.head: case for case in reversed(parity_models.CASES)}
"""A case of every pre-training head."""
FAMILIES = {case.family: case for case in reversed(parity_models.CASES)}
HEADS = [parity_heads.Case(case.encoder, case.task_name, positions=512) for case in parity_heads.CASES]


@pytest.fixture(scope="module")
def table():
    table = SoakTable(
        "onnx_families",
        "largest absolute differences to transformers' class in float32, random weights of deviation 0.1, batches of "
        f"1, 2 and 8, 1 to 512 tokens; ONNX in onnxruntime {onnxruntime.__version__}, float16 on a CPU, transformers "
        f"{transformers.__version__}; bars {', '.join(f'{form} {bar:g}' for form, bar in BARS.items())}; megabert: of "
        f"the hidden states. Not there, because transformers has no class: {', '.join(map('For'.join, NO_CLASS))}",
        f"{'model':<38} {'results':<16} {'megabert':>9} {'ONNX':>9} {'float16':>9}",
    )

    def check(model, results, differences):
        table.add(f"{model:<38} {results:<16} " + " ".join(f"{differences[form]:9.1e}" for form in BARS))
        assert all(differences[form] < bar for form, bar in BARS.items())

    return check


def write_random_encoder(case, folder):
    """Write a pre-trained model of up to 512 tokens with random weights."""
    tokenizer = parity_models.make_tokenizer(folder / "tokenizer", pad_id=1)
    config = type(case.config)(**{**vars(case.config), "max_position_embeddings": 512})
    torch.manual_seed(0)
    parity_models.write(parity_models.random_model(config, case.objective), folder / "ours", tokenizer)


@pytest.mark.parametrize("head", PRETRAINED)
def test_pretrained(head, table, tmp_path):
    write_random_encoder(PRETRAINED[head], tmp_path)
    table(head, "logits", form_differences(tmp_path / "ours", tmp_path / "onnx", None))


@pytest.mark.parametrize("kind", ["mean", "cls", "colbert"])
@pytest.mark.parametrize("family", FAMILIES)
def test_vectors(family, kind, table, tmp_path):
    write_random_encoder(FAMILIES[family], tmp_path)
    table(family, f"vectors, {kind}", form_differences(tmp_path / "ours", tmp_path / "onnx", kind))


@pytest.mark.parametrize("case", HEADS, ids=lambda case: f"{case.encoder}-{case.task_name}")
def test_heads(case, table, tmp_path):
    parity_heads.write_random_model(case, tmp_path)
    pooling = case.encoder.partition(",")[2]
    differences = form_differences(tmp_path / "ours", tmp_path / "onnx", None)
    table(case.their_class.__name__ + pooling, case.task_name, differences)


def test_weights_of_a_large_model_lie_beside_the_graph(monkeypatch, tmp_path):
    monkeypatch.setattr("torch.onnx._internal.exporter._onnx_program._LARGE_MODEL_THRESHOLD", 1 << 10)
    write_random_encoder(FAMILIES["bert"], tmp_path)
    assert form_differences(tmp_path / "ours", tmp_path / "onnx", "mean", (1, 9))["ONNX"] < BARS["ONNX"]
    assert {f"onnx/{path.name}" for path in (tmp_path / "onnx/onnx").iterdir()} == ONNX_FILES
    # An earlier export with both files is replaced.
    form_differences(tmp_path / "onnx", tmp_path / "onnx", "cls", (1, 9))
