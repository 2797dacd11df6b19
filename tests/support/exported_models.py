"""Small models with weights far from a uniform guess, and their export."""

import json
from pathlib import Path

import torch

from megabert.downstream.export.export_folder import open_export
from megabert.downstream.export.huggingface import write_model_files
from megabert.downstream.export.model_card import ModelCard
from megabert.models.bert import BertForPreTraining
from megabert.models.build import initialize
from megabert.settings.config.model import ModelConfig
from megabert.tokens.tokenization import save_huggingface
from megabert.tokens.tokenization.training import train_wordpiece

CORPUS = Path(__file__).parents[2] / "examples" / "corpus" / "public_domain.jsonl"

CARD = ModelCard(
    name="Little BERT",
    description="A test.",
    data={"corpus": "three sentences", "tokens": "1,000"},
    recipe={"optimizer": "lamb", "steps": 10},
    checkpoint={"step": 10},
    metrics={"eval/mlm_loss": 4.25, "eval/mlm_accuracy": 0.125},
    languages=("en",),
    license="apache-2.0",
)


def model_of(config, objective="nsp", seed=0):
    model = BertForPreTraining(config, objective=objective)
    initialize(model, seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5)  # far from a uniform guess
    return model.eval()


def write_huggingface(folder, **content):
    """Write a folder with a model; `write_model_files` explains the arguments."""
    with open_export(folder) as new:
        write_model_files(new, **content)


def write(folder, model, tokenizer_dir, card=CARD):
    state = {name: parameter.detach() for name, parameter in model.named_parameters()}
    write_huggingface(folder, state=state, config=model.config, tokenizer_dir=tokenizer_dir, card=card)
    return state


def write_english(folder: Path, *, family: str) -> Path:
    """Write a small random model with 1,000 pieces of the bundled English corpus, and return its folder."""
    texts = [json.loads(line)["text"] for line in CORPUS.read_text(encoding="utf-8").splitlines()[::16]]
    tokenizer = train_wordpiece(texts, vocab_size=1000, cased=False)
    save_huggingface(tokenizer, folder / "tokenizer")
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
    config = ModelConfig(family=family, vocab_size=tokenizer.vocab_size, max_position_embeddings=128, **sizes)
    write(folder / "model", model_of(config, config.traits.objectives[0]), folder / "tokenizer")
    return folder / "model"
