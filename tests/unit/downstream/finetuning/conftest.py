"""A random BERT of two narrow layers with a vocabulary of words, and small sets that it can learn."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from support.exported_models import write_huggingface
from support.tiny_models import tiny_config, write_tokenizer

from megabert.downstream.export.model_card import ModelCard
from megabert.downstream.finetuning.batches import Batcher
from megabert.downstream.finetuning.model import TaskModel
from megabert.downstream.finetuning.task_kinds import TASK_KINDS
from megabert.downstream.finetuning.tasks import find_task
from megabert.downstream.finetuning.trainer import EvaluationSet, evaluate
from megabert.models.bert import BertForPreTraining
from megabert.models.build import initialize
from megabert.settings.config.finetune import FinetuneConfig
from megabert.settings.config.model import ModelConfig
from megabert.tokens.tokenization import load_tokenizer

WORDS = ("the a cat dog sat on mat sea ship sailed over good bad fine red blue who what is was in of and").split()  # noqa: SIM905
FILLERS = ["the", "a", "sat", "on", "mat", "sea", "over", "in", "of", "and"]


@pytest.fixture(scope="session")
def tokenizer_dir(tmp_path_factory) -> Path:
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = [*special, *WORDS, *letters[1:], ".", "?", *(f"##{c}" for c in letters)]
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"), pieces, model_max_length=64)


@pytest.fixture(scope="session")
def tokenizer(tokenizer_dir):
    return load_tokenizer(tokenizer_dir)


@pytest.fixture(scope="session")
def model_config(tokenizer) -> ModelConfig:
    return tiny_config(vocab_size=tokenizer.vocab_size, intermediate_size=64, max_position_embeddings=64)


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
        config = FinetuneConfig(**{"model": "m", "data": "d", "learning_rate": 3e-5, **settings})
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


@pytest.fixture(scope="module")
def without_gpu():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        yield


def write_rte(path: Path, count: int, seed: int) -> None:
    rng = random.Random(seed)
    words, labels = ("good", "bad"), ("entailment", "not_entailment")
    rows = [f"{i}\t{sentence(rng, *3 * [words[i % 2]])}\t{sentence(rng)}\t{labels[i % 2]}\n" for i in range(count)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("index\tsentence1\tsentence2\tlabel\n" + "".join(rows))


@pytest.fixture(scope="session")
def glue(tmp_path_factory) -> Path:
    """A GLUE folder with one task."""
    folder = tmp_path_factory.mktemp("glue")
    write_rte(folder / "RTE" / "train.tsv", 240, 1)
    write_rte(folder / "RTE" / "dev.tsv", 41, 2)
    return folder


@pytest.fixture(scope="session")
def rte(glue, model_dir) -> list[str]:
    """The words that fine-tune the model on that task."""
    return ["finetune", "rte", "--model", str(model_dir), "--data", str(glue / "RTE")]


@pytest.fixture(scope="session")
def sets_dir(tmp_path_factory) -> Path:
    """A folder with RTE, and a set of one's own with a test file."""
    folder = tmp_path_factory.mktemp("sets")
    write_rte(folder / "RTE" / "train.tsv", 120, 1)
    write_rte(folder / "RTE" / "dev.tsv", 41, 2)
    (folder / "own").mkdir()
    for seed, (stem, count) in enumerate({"train": 90, "dev": 30, "test": 31}.items()):
        rng, words = random.Random(seed), ("red", "blue")
        rows = [f"{sentence(rng, words[i % 2])}\t{words[i % 2]}\n" for i in range(count)]
        (folder / "own" / f"{stem}.tsv").write_text("text\tlabel\n" + "".join(rows))
    return folder
