"""A random BERT of two narrow layers with a vocabulary of words, and small sets that it can learn."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from megabert.config.finetune import FinetuneConfig
from megabert.config.model import ModelConfig
from megabert.export.huggingface import write_huggingface
from megabert.export.model_card import ModelCard
from megabert.finetuning.batches import Batcher
from megabert.finetuning.evaluate import EvaluationSet, evaluate
from megabert.finetuning.model import TaskModel
from megabert.finetuning.task_kinds import TASK_KINDS
from megabert.finetuning.tasks import find_task
from megabert.models.bert import BertForPreTraining
from megabert.models.build import initialize
from megabert.tokenization import load_tokenizer, save_huggingface

WORDS = ("the a cat dog sat on mat sea ship sailed over good bad fine red blue who what is was in of and").split()  # noqa: SIM905
FILLERS = ["the", "a", "sat", "on", "mat", "sea", "over", "in", "of", "and"]


@pytest.fixture(scope="session")
def tokenizer_dir(tmp_path_factory) -> Path:
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    pieces = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *WORDS,
        *letters[1:],
        ".",
        "?",
        *(f"##{c}" for c in letters),
    ]
    folder = tmp_path_factory.mktemp("tokenizer")
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    save_huggingface(load_tokenizer(folder), folder / "saved", model_max_length=64)
    return folder / "saved"


@pytest.fixture(scope="session")
def tokenizer(tokenizer_dir):
    return load_tokenizer(tokenizer_dir)


@pytest.fixture(scope="session")
def model_config(tokenizer) -> ModelConfig:
    return ModelConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
    )


@pytest.fixture(scope="session")
def model_dir(tokenizer_dir, model_config, tmp_path_factory) -> Path:
    """A pre-trained model, so to speak."""
    model = BertForPreTraining(model_config)
    initialize(model, 3)
    folder = tmp_path_factory.mktemp("pretrained") / "model"
    state = {name: value.detach() for name, value in model.named_parameters()}
    write_huggingface(
        folder, state=state, config=model_config, tokenizer_dir=tokenizer_dir, card=ModelCard(name="tiny")
    )
    return folder


@pytest.fixture
def make_kind(tokenizer):
    """Return a function that binds a task: ``make_kind("squad", labels, max_seq_length=..., **settings)``."""

    def make(name: str, labels=(), *, max_seq_length: int = 32, **settings):
        task = find_task(name)
        config = FinetuneConfig(model="m", data="d", **settings)
        return TASK_KINDS[task.kind](task, config, tokenizer, labels=tuple(labels), max_seq_length=max_seq_length)

    return make


def batcher_of(features, *, tokens: int = 512, rank: int = 0, world_size: int = 1) -> Batcher:
    return Batcher(features=features, micro_batch_tokens=tokens, pad_id=0, rank=rank, world_size=world_size)


@pytest.fixture
def learn(model_config):
    """Return a function that trains a kind's head and encoder, and scores it on the training examples."""

    def train(kind, examples, *, steps: int = 60, rate: float = 3e-3):
        features = kind.encode(examples, is_training=True)
        model = TaskModel(model_config, head=kind.head, num_outputs=kind.num_outputs)
        initialize(model, 1)
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
        for step in range(1, steps + 1):
            batches, terms = batcher_of(features).step(step, seed=1, global_batch_size=16)
            optimizer.zero_grad()
            for batch in batches:
                (kind.loss(model(batch.inputs, batch.label_positions_M), batch) / terms).backward()
            optimizer.step()
        model.eval()
        data = EvaluationSet("train", examples, features)
        with torch.no_grad():
            return model, evaluate(model, kind, data, device=torch.device("cpu"))

    return train


def sentence(rng: random.Random, *words: str, length: int = 6) -> str:
    """Return fillers with the given words at random positions, in their order."""
    text = rng.choices(FILLERS, k=length)
    positions = sorted(rng.sample(range(length), len(words)))
    for position, word in zip(positions, words, strict=True):
        text[position] = word
    return " ".join(text)


def random_logits(features, outputs: int, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((rows, outputs)).astype(np.float32) for rows in features.rows]
