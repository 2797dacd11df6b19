"""The ONNX form of every family, with every head and kind of vector: largest differences to transformers' class."""

import onnxruntime
import pytest
import torch
import transformers
from soak.soak_table import SoakTable
from support import parity_heads, parity_models
from support.onnx_differences import onnx_difference

pytestmark = pytest.mark.soak

BAR = 1e-4
SIZES = [(batch, length) for batch in (1, 2, 8) for length in (1, 2, 17, 128, 512)]
PRETRAINED = {case.family: case for case in reversed(parity_models.CASES)}
HEADS = [parity_heads.Case(case.encoder, case.task_name, positions=512) for case in parity_heads.CASES]
NAMES = ["pre-training", "mean", "cls", "colbert"]


@pytest.fixture(scope="module")
def table():
    return SoakTable(
        "onnx_families",
        f"largest absolute differences of the ONNX form in onnxruntime {onnxruntime.__version__} to transformers "
        f"{transformers.__version__}, float32, batches of 1 to 8, 1 to 512 tokens, bar {BAR:g}",
        f"{'model':<38} {'results':<16} {'difference':>10}",
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("family", PRETRAINED)
def test_encoders(family, name, table, tmp_path):
    case, tokenizer = PRETRAINED[family], parity_models.make_tokenizer(tmp_path / "tokenizer", pad_id=1)
    config = type(case.config)(**{**vars(case.config), "max_position_embeddings": 512})
    torch.manual_seed(0)
    parity_models.write(parity_models.random_model(config, case.objective), tmp_path / "source", tokenizer)
    kind = None if name == "pre-training" else name
    difference = onnx_difference(tmp_path / "source", tmp_path / "onnx", kind, SIZES)
    table.add(f"{case.head if kind is None else family:<38} {name:<16} {difference:10.1e}")
    assert difference < BAR


@pytest.mark.parametrize("case", HEADS, ids=lambda case: f"{case.encoder}-{case.task_name}")
def test_heads(case, table, tmp_path):
    parity_heads.write_random_model(case, tmp_path)
    difference = onnx_difference(tmp_path / "ours", tmp_path / "onnx", None, SIZES)
    pooling = case.encoder.partition(",")[2]
    table.add(f"{case.their_class.__name__ + pooling:<38} {case.task_name:<16} {difference:10.1e}")
    assert difference < BAR
