"""A pair of texts that the exported tokenizer makes and the exported model reads, both in transformers."""

import pytest
import torch
import transformers
from support.exported_models import model_of, write

from megabert.downstream.inspection.encode_text import pack_text
from megabert.settings.config.families import FAMILIES
from megabert.settings.config.model import ModelConfig
from megabert.tokens.tokenization import load_tokenizer, save_huggingface, train_unigram
from megabert.tokens.tokenization.training import train_byte_bpe, train_wordpiece

TEXTS = ["the ship sailed over the sea", "the sea took the ship", "a ship sailed"] * 3
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}


@pytest.mark.parametrize("train", [train_wordpiece, train_byte_bpe, train_unigram])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_pair_has_the_segments_that_the_model_was_trained_with(family, train, tmp_path):
    tokenizer = train(TEXTS, vocab_size=90 if train is train_unigram else 300)
    save_huggingface(tokenizer, tmp_path / "tokenizer")
    config = ModelConfig(family=family, vocab_size=tokenizer.vocab_size, max_position_embeddings=64, **SIZES)
    model = model_of(config, config.traits.objectives[0])
    write(tmp_path / "model", model, tmp_path / "tokenizer")

    pair = "the ship sailed", "over the sea"
    inputs = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")(*pair, return_tensors="pt")
    encoded, batch = pack_text(model, load_tokenizer(tmp_path / "model"), *pair)
    assert inputs["input_ids"][0].tolist() == encoded.ids.tolist()
    assert encoded.ids.tolist().count(tokenizer.special_ids.sep) == 2, "instances of pre-training have two"
    theirs = transformers.AutoModel.from_pretrained(tmp_path / "model").eval()
    with torch.no_grad():
        torch.testing.assert_close(theirs(**inputs).last_hidden_state[0], model.bert(batch)[0], atol=1e-5, rtol=1e-5)
