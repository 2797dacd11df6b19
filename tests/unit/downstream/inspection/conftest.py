from pathlib import Path

import pytest
from support.exported_models import model_of, write
from support.tiny_models import tiny_config, write_tokenizer

from megabert.downstream.export.model_card import ModelCard
from megabert.tokens.tokenization import load_tokenizer

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "dog", "sat", "[", "]", "mask", ".", "##s"]
NARROW = {"hidden_size": 16, "intermediate_size": 16}


@pytest.fixture
def tokenizer(tmp_path):
    return load_tokenizer(write_tokenizer(tmp_path / "tokenizer", PIECES))


@pytest.fixture
def model():
    """Return a model of two layers whose random weights are large enough for attention to be far from uniform."""
    return model_of(tiny_config(vocab_size=len(PIECES), **NARROW, max_position_embeddings=12))


@pytest.fixture
def model_folder(model, tokenizer, tmp_path) -> Path:
    """Return the folder of the model in Hugging Face form."""
    write(tmp_path / "model", model, tmp_path / "tokenizer", ModelCard(name="little"))
    return tmp_path / "model"
