"""Models of two narrow layers, of every family, and tokenizers of a few pieces."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from megabert.models.bert import BertForPreTraining
from megabert.models.build import initialize
from megabert.settings.config.model import ModelConfig
from megabert.tokens.tokenization import load_tokenizer, save_huggingface

SIZES: dict[str, Any] = {
    **{"vocab_size": 70, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2},
    **{"intermediate_size": 48, "max_position_embeddings": 40},
}


def tiny_config(family: str = "bert", **own: Any) -> ModelConfig:
    """Return a small configuration; ``own`` has the fields that differ."""
    return ModelConfig(**{"family": family, **SIZES, **own})


def tiny_model(family: str = "bert", *, objective: str = "none", noise: float = 0.0, **own: Any) -> BertForPreTraining:
    """Return a model with its first weights; ``noise`` is a deviation to add, for attention far from uniform."""
    model = BertForPreTraining(tiny_config(family, **own), objective=objective)
    initialize(model, 0)
    for parameter in model.parameters():
        parameter.data += noise * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0))
    return model


def write_tokenizer(folder: Path, pieces: Sequence[str], **settings: Any) -> Path:
    """Write the folder of a WordPiece tokenizer with these pieces, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    save_huggingface(load_tokenizer(folder), folder, **settings)
    return folder
